"""Recommendations: record, decide, renew and withdraw them. Lookup lives in `best`."""
