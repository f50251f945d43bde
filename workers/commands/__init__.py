"""What the worker's command line does, on this machine or over many. Leaves the work itself to `workers.agent`."""
