"""Retunes: queue, admission, challenge, wide search. `schedules` and `best` request them."""
