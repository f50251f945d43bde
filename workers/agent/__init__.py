"""Loop of the worker's agent: request a lease, run and supervise the trial, collect the result, report it.
`workers.launchers` starts the ranks."""
