"""How far the predictor is from what this machine's own CPU ranks measure. See `__main__`."""
