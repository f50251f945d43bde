"""Schemas of best configurations, decisions about them, and the tuning targets (model + workload + cluster) they apply
to."""
