"""Repeated blocks of a model, in a rank and in a user's training script: found, checkpointed, compiled."""
