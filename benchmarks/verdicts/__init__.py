"""How often the verdict names a winner that is none, and how often it finds one that is. See `__main__`."""
