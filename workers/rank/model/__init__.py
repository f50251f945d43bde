"""Model, initial weights and training data of one rank. Sharding is done by `workers.rank.strategies`."""
