"""Describe what is trained: model, workload, dtypes and the limits of the search."""
