"""Pareto front: trials for which no other trial is better in both speed and memory."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def front(trials: Iterable[T], memory_gib: Callable[[T], float], speed: Callable[[T], float]) -> list[T]:
    """Trials on the Pareto front of speed and memory: each is faster than every trial that needs no more memory. They
    come by rising memory, and so by rising speed."""
    frontier: list[T] = []
    for trial in sorted(trials, key=lambda trial: (memory_gib(trial), -speed(trial))):
        if not frontier or speed(trial) > speed(frontier[-1]):
            frontier.append(trial)
    return frontier
