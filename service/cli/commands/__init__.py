"""One command of `shardtune` each. What they share stands in `service.cli`."""
