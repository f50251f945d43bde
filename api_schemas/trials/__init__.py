"""Schemas of trials: leases, tasks, measurements, failures, predictions and diagnoses."""
