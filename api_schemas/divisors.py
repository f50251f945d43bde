"""Divisors of numbers of ranks, samples and blocks."""

from functools import lru_cache


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a number in rising order. Cached: a search of large clusters asks thousands of times for each."""
    low = [k for k in range(1, int(number**0.5) + 1) if number % k == 0]
    return tuple(sorted({*low, *(number // k for k in low)}))
