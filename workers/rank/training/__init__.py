"""Training steps of a trial: measuring loop, user script, trace, resume check, checkpoints. Clocks and meters are in
`workers.rank.measure`."""
