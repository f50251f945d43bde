"""Error of the predictor against this machine's own CPU ranks. See `__main__`."""
