"""How well layouts of tensor, pipeline and data parallelism are put in order before any of them ran, on published tables."""
