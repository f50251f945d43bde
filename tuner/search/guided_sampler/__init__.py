"""Guided sampler: the predictor's estimate for every candidate, corrected by this study's measurements."""
