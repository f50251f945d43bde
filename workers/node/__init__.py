"""One host of a gang: devices, fork server, GPU watch, and the ranks here. Obeys the agent's lines; leaves leases and results to it."""
