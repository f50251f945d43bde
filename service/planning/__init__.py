"""What a study does next, without a transaction: snapshot, plan, and the planner's caches. Leaves applying it to `lifecycle`."""
