"""Describe retunes, canaries, schedules and their costs."""
