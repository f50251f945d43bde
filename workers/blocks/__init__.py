"""Repeated blocks of a model, in a rank and in a user's training script: finding, activation checkpointing and
compilation."""
