"""Predicted order of layouts of tensor, pipeline and data parallelism, compared with published tables."""
