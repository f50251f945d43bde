"""Response times of pages with many studies stored. See `__main__`."""
