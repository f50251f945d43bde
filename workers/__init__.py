"""Who runs it: the agent on a host of GPUs, and the rank side. Leaves every decision about a study to the service."""
