"""Lookup of recommendations, and detection of stale ones. Recording and deciding live in `recommendations`."""
