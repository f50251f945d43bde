"""Leases of runs to workers: grant, renew, report. `planning` decides what a study does next, `lifecycle` changes the
states of studies and runs.
"""
