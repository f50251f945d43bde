"""Error of the predictor against trials that ran on a real GPU. See `__main__`."""
