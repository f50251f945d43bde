"""Predictions of each backend, a module each: its states, traffic and host costs. `footprint` and `throughput`
combine them."""
