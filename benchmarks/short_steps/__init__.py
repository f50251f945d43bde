"""Step times extended from short steps, against whole steps of real CPU ranks. See `__main__`."""
