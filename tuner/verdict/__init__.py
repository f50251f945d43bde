"""What won and whether it counts: parity, final comparison, paired test, restart. Leaves what to try to `tuner.search`."""
