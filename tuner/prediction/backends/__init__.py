"""What each backend keeps, sends and costs the host, a module each; moments and sums are `footprint`'s and `throughput`'s."""
