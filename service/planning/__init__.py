"""Planning of studies' next steps, without a transaction: snapshot, plan, and caches. `lifecycle` applies the steps."""
