"""Baseline: a user's present configuration, given in Shardtune's format or as an unchanged DeepSpeed JSON, Accelerate
configuration or file of transformers' TrainingArguments.

A key that contradicts the workload is an error that names both; a key without effect in a trial becomes a note.
"""

from shardtune.tuner.baseline.implied_precision import implied_precision
from shardtune.tuner.baseline.resolve import ResolvedBaseline, resolve, resolve_with_notes

__all__ = ["ResolvedBaseline", "implied_precision", "resolve", "resolve_with_notes"]
