"""Error rate and power of the verdict. See `__main__`."""
