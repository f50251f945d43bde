"""Commands about a cluster that is not there yet."""
