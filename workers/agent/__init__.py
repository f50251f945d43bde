"""Agent's loop over leases: request, run, supervise, collect, report. `workers.launchers` starts the ranks."""
