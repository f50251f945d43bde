"""Trials that no other beats in both speed and memory."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def front(trials: Iterable[T], memory_gib: Callable[[T], float], speed: Callable[[T], float]) -> list[T]:
    """Those that are faster than everything that needs no more memory, by rising memory (and so by rising speed)."""
    found: list[T] = []
    for trial in sorted(trials, key=lambda trial: (memory_gib(trial), -speed(trial))):
        if not found or speed(trial) > speed(found[-1]):
            found.append(trial)
    return found
