"""Measurements: how fast, how accurate, how well under load. Each is run by hand; results are kept in docs/measurements."""
