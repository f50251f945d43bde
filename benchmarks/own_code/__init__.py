"""Benchmark of traces of the user's own code: traced peak memory against the measured peak of the same step."""
