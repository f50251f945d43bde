"""Samplers drawn through Optuna, the guided sampler's rivals. The only subpackage that imports Optuna."""
