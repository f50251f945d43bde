"""Search: chooses the configuration that a study tries next, and decides when the study stops. `tuner.verdict` decides
the result."""
