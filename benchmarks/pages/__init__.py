"""How long the pages take with many studies stored. See `__main__`."""
