"""Optimizers in exported files, one module each: lines of `train_snippet.py` and fields of other programs."""

from shardtune.tuner.export.optimizers.registry import OPTIMIZERS, exported, lost_note, make, own_note

__all__ = ["OPTIMIZERS", "exported", "lost_note", "make", "own_note"]
