"""Predictions for each optimizer, one module each: the bytes that its step needs besides its states, and its
seconds."""

from shardtune.tuner.prediction.optimizers.registry import OPTIMIZERS, step_bytes, step_seconds, with_states

__all__ = ["OPTIMIZERS", "step_bytes", "step_seconds", "with_states"]
