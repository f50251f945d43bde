"""Record the traces that `shardtune explain` shows, and read them."""
