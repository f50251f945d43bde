"""Freshness of recommendations: which differences of hardware or software make a measurement stale, and when. The
service stores the result."""
