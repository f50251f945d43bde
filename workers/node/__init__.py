"""Node agent, which runs one host of a gang: devices, fork server, GPU watch and ranks. The gang's agent decides on
leases and results."""
