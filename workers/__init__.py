"""Workers: the agent on a host of GPUs, and the rank side. The service makes every decision about a study."""
