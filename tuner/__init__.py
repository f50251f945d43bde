"""What to try, what won, and what it will cost: pure functions. Leaves storing to `db`, running to `workers`, deciding when to `service`."""
