"""State of one service process, and `Context`, which passes this state on. All of it is lost when the process ends."""
