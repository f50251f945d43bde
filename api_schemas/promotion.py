"""Who is run again after a search: stored with a study while its promotion lasts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PromotionField:
    """Who is run again."""

    baseline: int | None
    """None: no configuration is feasible."""
    candidates: tuple[int, ...]
    """The fastest other feasible trials of the search, fastest first; empty: the baseline is the only feasible one."""
    notes: tuple[str, ...] = ()
