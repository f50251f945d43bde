"""Lookup of recommended configurations, and detection of stale recommendations. `recommendations` records them and
applies users' decisions.
"""
