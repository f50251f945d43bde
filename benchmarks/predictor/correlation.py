"""Spearman's rank correlation, ties sharing their rank."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Correlation of the ranks; None where one side is constant."""
    ranks, other = _ranks(first), _ranks(second)
    if ranks.std() == 0 or other.std() == 0:
        return None
    return float(np.corrcoef(ranks, other)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    array = np.asarray(values)
    return np.array([(array < value).sum() + ((array == value).sum() - 1) / 2 for value in array], dtype=float)
