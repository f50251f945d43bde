"""Samplers drawn through Optuna (random, TPE, Gaussian process), alternatives to the guided sampler. The only
subpackage that imports Optuna."""
