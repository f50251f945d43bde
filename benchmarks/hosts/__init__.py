"""All candidates of a small space measured over a laboratory's hosts, then a study that knows nothing of that."""
