"""Lease, renew, report: which run a worker gets. Leaves what a study does next to `planning`, its states to `lifecycle`."""
