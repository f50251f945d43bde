"""Describe best configurations, their decisions and the tuning targets that they answer."""
