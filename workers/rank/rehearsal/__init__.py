"""Rehearsal of one rank at a cluster's full number of ranks: the strategies' own code on tensors without values and on
torch's fake process group, in a process of its own."""
