"""Functions for scripts on Hugging Face's Trainer: `TrainingArguments(..., **training_arguments(trial))` and
`attach(trainer, trial)`."""

from shardtune.workers.adapter.trainer import attach, backends, training_arguments

__all__ = ["attach", "backends", "training_arguments"]
