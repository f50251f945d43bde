"""Cron, ticks, and the loop that drives retuning. Leaves what a retune does to `retuning`."""
