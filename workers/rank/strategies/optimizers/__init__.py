"""Optimizers of a trial, one module each: the torch optimizers that a backend steps together."""

from shardtune.workers.rank.strategies.optimizers.registry import MAKERS, OptimizerSet, make

__all__ = ["MAKERS", "OptimizerSet", "make"]
