"""Adapters in predictions: the part of a block that is trained, and what frozen layers need not keep."""
