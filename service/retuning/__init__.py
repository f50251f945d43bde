"""Retunes, which measure recommendations again: queue, admission, challenge, wide search. `schedules` and `best`
request retunes.
"""
