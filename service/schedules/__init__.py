"""Schedules: cron, ticks, and the loop that drives retuning. `retuning` decides what a retune does."""
