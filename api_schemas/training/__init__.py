"""Schemas of the training task: model, workload, dtypes and the limits of the search space."""
