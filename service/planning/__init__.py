"""Planning of studies' next steps outside any transaction: snapshots, plans, and caches. `lifecycle` applies the
planned steps.
"""
