"""Gang: many hosts as one worker, with a node agent on each, the pipes to them, and the launcher over all.
`workers.node` is one host."""
