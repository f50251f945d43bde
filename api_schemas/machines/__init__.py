"""Schemas of machines: clusters, worker inventories, fingerprints (hardware and software versions) and the observed
state of hosts."""
