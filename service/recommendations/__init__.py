"""Recommendations: record, decide, renew and withdraw them. `best` finds recommendations for requests."""
