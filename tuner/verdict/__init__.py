"""What won and whether it counts: parity, promotion, paired test, restart. Leaves what to try to `tuner.search`."""
