"""Baseline: the user's present configuration, in our words, or a DeepSpeed JSON, an Accelerate configuration or
transformers' TrainingArguments unchanged.

A key that contradicts the workload is an error naming both; a key that does nothing in a trial is a note.
"""

from shardtune.tuner.baseline.implied_precision import implied_precision
from shardtune.tuner.baseline.resolve import ResolvedBaseline, resolve, resolve_with_notes

__all__ = ["ResolvedBaseline", "implied_precision", "resolve", "resolve_with_notes"]
