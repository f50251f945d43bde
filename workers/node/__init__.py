"""One host of a gang: devices, warm host, GPU watch, and the ranks here. Obeys the agent's lines; leaves leases and results to it."""
