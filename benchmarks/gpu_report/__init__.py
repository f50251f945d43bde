"""Proofs on a GPU host: the steps of `make test-gpu`, what they mean, and the report."""
