"""Baseline: a user's present configuration, given in Shardtune's format or as an unchanged DeepSpeed JSON, Accelerate
configuration or file of transformers' TrainingArguments.

A key that contradicts the workload is an error naming both; a key that does nothing in a trial is a note.
"""

from shardtune.tuner.baseline.implied_precision import implied_precision
from shardtune.tuner.baseline.resolve import ResolvedBaseline, resolve, resolve_with_notes

__all__ = ["ResolvedBaseline", "implied_precision", "resolve", "resolve_with_notes"]
