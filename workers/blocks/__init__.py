"""The repeated blocks of a model, in a rank and in a training script of the user's own: found, checkpointed, compiled."""
