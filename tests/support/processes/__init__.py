"""Real processes of the product, started as an operator starts them or forked from a preloaded process."""
