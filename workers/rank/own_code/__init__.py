"""Own code: traces one training step of the user's own code on tensors without values, for predictions."""
