"""Command-line commands of the worker, on one machine or over several hosts. `workers.agent` runs the leased trials."""
