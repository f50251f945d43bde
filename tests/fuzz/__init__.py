"""Fuzzers of what reads foreign input: `python -m tests.fuzz --examples 100000` is the long run."""
