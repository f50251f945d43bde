"""Fakes, helpers and real parts that tests and benchmarks share. No tests here."""
