"""What `shardtune explain` does beside showing: the trial is run again under the profiler, the traces are read."""
