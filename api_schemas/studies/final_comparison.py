"""Who is run again after a search: stored with a study while its final comparison lasts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finalists:
    """Who is run again."""

    baseline: int | None
    """None: no configuration is feasible."""
    candidates: tuple[int, ...]
    """The fastest other feasible trials of the search, fastest first; empty: the baseline is the only feasible one."""
    notes: tuple[str, ...] = ()
    defaults: tuple[int, ...] = ()
    """Without a baseline of the user's: who may be it, `baseline` among them. Their validation runs decide, as one search run may
    have been disturbed. Empty: the user's stands."""

    @property
    def members(self) -> tuple[int, ...]:
        """All whose validation runs this final comparison may ask for, once each."""
        named = (*((self.baseline,) if self.baseline is not None else ()), *self.candidates, *self.defaults)
        return tuple(dict.fromkeys(named))

    @property
    def has_rivals(self) -> bool:
        """Something is to be run again."""
        return bool(self.candidates) or len(self.defaults) > 1
