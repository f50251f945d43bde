"""Count a model on this machine and print predictions, for `shardtune predict`."""
