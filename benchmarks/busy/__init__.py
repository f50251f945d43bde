"""The command `tune` beside foreign load: whether its answers are right, and whether its sentences are true."""
