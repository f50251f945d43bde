"""Logs, traces and metrics. Decides nothing."""
