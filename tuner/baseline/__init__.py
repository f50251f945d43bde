"""What the user runs today, as a configuration of ours: in our words, or a DeepSpeed JSON, an Accelerate configuration or
transformers' TrainingArguments as they are.

A key that contradicts the workload is an error naming both; a key that does nothing in a trial is a note.
"""

from shardtune.tuner.baseline.meant_recipe import meant_recipe
from shardtune.tuner.baseline.resolve import ResolvedBaseline, resolve, resolve_with_notes

__all__ = ["ResolvedBaseline", "meant_recipe", "resolve", "resolve_with_notes"]
