"""Describe where training runs: clusters, inventories, fingerprints and conditions of a host."""
