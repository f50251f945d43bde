"""State machines of studies, trials and runs: state changes, ends of attempts, expiry of leases, applying planned
steps. `planning` plans the steps.
"""
