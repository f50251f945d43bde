"""Optimizers of a trial, one module each: the torch optimizers that a backend steps together."""

from shardtune.workers.rank.strategies.optimizers.registry import MAKERS, OptimizerSet, installed_kinds, make

__all__ = ["MAKERS", "OptimizerSet", "installed_kinds", "make"]
