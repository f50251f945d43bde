"""The model, its weights and its data in one rank. Leaves sharding to `workers.rank.strategies`."""
