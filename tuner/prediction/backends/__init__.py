"""Predictions for each training backend, one module each: its states, traffic and host costs. `footprint` and
`throughput` combine them."""
