"""What `shardtune predict` is made of: a model counted on this machine, and the tables it prints."""
