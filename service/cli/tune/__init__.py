"""Run `shardtune tune`: its own service and worker, progress on the terminal, and the files of the answer."""
