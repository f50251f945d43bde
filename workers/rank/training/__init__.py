"""Steps of a trial: loop, script, profile, restart, checkpoints. Leaves clocks and meters to `workers.rank.measure`."""
