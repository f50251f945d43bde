"""The guided sampler: what the predictor says of every candidate, corrected by what this study has measured."""
