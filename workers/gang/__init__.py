"""Gang: several hosts that act as one worker, with a node agent on each, the pipes to the node agents, and the launcher
over all hosts. `workers.node` runs on one host."""
