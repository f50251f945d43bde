"""Commands of the worker, on this machine or over many. `workers.agent` does the work itself."""
