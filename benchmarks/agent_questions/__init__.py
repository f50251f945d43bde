"""Questions with keys that the tools for agents must answer, scored by a program."""
