"""Measurements of one rank: time and memory."""
