"""Stand-ins for the worker's fork server, tasks and service."""
