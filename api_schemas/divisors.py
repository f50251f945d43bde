"""Divisors of numbers of ranks, samples and blocks."""

from functools import lru_cache


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a number in rising order. The results are cached, because a search for a large cluster
    needs the divisors of the same number thousands of times."""
    low = [k for k in range(1, int(number**0.5) + 1) if number % k == 0]
    return tuple(sorted({*low, *(number // k for k in low)}))
