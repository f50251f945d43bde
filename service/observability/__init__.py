"""Logs, traces and metrics of a service process."""
