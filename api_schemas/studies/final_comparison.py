"""Finalists of a search: trials that the final comparison runs again. They are stored with the study while it lasts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finalists:
    """Trials that the final comparison runs again."""

    baseline: int | None
    """Trial number of the baseline; None: no configuration is feasible."""
    candidates: tuple[int, ...]
    """Fastest other feasible trials of the search, fastest first; empty: the baseline is the only feasible one."""
    notes: tuple[str, ...] = ()
    defaults: tuple[int, ...] = ()
    """Trials that may become the baseline where the user gave none, `baseline` among them. Their validation runs
    decide, as one search run may have been disturbed. Empty: the user's baseline stays."""

    @property
    def members(self) -> tuple[int, ...]:
        """All trials whose validation runs this final comparison may ask for, once each."""
        named = (*((self.baseline,) if self.baseline is not None else ()), *self.candidates, *self.defaults)
        return tuple(dict.fromkeys(named))

    @property
    def needs_runs(self) -> bool:
        """Whether any trial is to be run again."""
        return bool(self.candidates) or len(self.defaults) > 1
