"""Measuring code of one rank: step time and memory."""
