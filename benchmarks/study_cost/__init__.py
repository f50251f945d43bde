"""GPU-seconds of whole studies in virtual time. See `__main__`."""
