"""Many hosts as one worker: a node agent on each, the pipes to them, and the launcher over all. Leaves one host to `workers.node`."""
