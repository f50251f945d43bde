"""Does `shardtune explain` name what was planted, and is it silent where nothing was? See `__main__`."""
