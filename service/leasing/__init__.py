"""Leases: grant, renew, report. `planning` decides what a study does next, `lifecycle` owns its states."""
