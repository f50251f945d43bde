"""Runs of what is served, sent and judged against its reference. Leaves when they are sent to `schedules`."""
