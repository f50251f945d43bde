"""How many trials, and GPU-seconds, samplers need on tables of measured configurations."""
