"""Freshness: which differences make a measurement stale, and when. The service stores the result."""
