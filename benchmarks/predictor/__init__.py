"""Error of the predictor's memory and speed against published measurements. See `__main__`."""
