"""State of one service process, and `Context`, which passes it on. Nothing here outlives the process."""
