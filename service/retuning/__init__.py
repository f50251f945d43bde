"""Retunes: queue, admission, challenge, search again. Leaves when they are asked for to `schedules` and `best`."""
