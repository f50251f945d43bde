"""Schemas of retunes (repeated measurements of recommendations), canaries, schedules and their costs."""
