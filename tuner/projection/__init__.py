"""Projection of a configuration's speed and memory from the sizes on which it was measured to a larger one.

The ratio between two predictions of `tuner.prediction` is applied to what was measured (`project`). What published
scaling runs lost beyond that ratio, and how far it was off, is in `structural` and `published_errors`. Pure; imports no
torch.
"""
