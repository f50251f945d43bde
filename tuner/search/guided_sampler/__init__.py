"""Guided sampler: scores every candidate by the predictor's estimate, corrected by this study's measurements."""
