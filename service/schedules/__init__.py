"""Schedules: cron expressions, ticks, and the background loop of retuning. `retuning` decides what a retune does."""
