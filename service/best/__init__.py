"""What is served now, and whether it is stale. Leaves recording and deciding to `recommendations`."""
