"""State of one service process, and `Context`, which hands it on. Nothing here outlives the process."""
