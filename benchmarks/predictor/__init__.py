"""How far the predictor's memory and speed are from published measurements. See `__main__`."""
