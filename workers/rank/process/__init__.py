"""Process matters of a rank: lifetime, environment, and operators built before it. Independent of the model."""
