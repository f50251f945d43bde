"""Questions, processes and tables of `shardtune rehearse`."""
