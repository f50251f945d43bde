"""Process-level parts of a rank: lifetime, environment, and operators built before the trial. Independent of the
model."""
