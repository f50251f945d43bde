"""What to try next and when to stop. Leaves what won to `tuner.verdict`."""
