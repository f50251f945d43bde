"""Search: which configuration a study tries next and when it stops. `tuner.verdict` decides the result."""
