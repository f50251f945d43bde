"""Options and tables of `shardtune plan`."""
