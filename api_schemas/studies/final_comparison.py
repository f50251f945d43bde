"""Schema of a study's finalists: the trials that the final comparison (paired runs that decide) runs again. Stored with
the study during the comparison."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finalists:
    """Trials of a search whose configurations the final comparison runs again, in pairs that decide the verdict."""

    baseline: int | None
    """Number of the trial that is the baseline; None if no configuration is feasible."""
    candidates: tuple[int, ...]
    """Numbers of the fastest trials that can train, fastest first, without the baseline. Empty if only the baseline
    can."""
    notes: tuple[str, ...] = ()
    defaults: tuple[int, ...] = ()
    """Numbers of the trials that may become the baseline if the user gave none; `baseline` is one of them. Validation
    runs decide among them, because other programs may have disturbed a single search run. If empty, the user's baseline
    is fixed."""
    replaced_baseline: str | None = None
    """Reason why the user's baseline could not be the baseline of the comparison. None if it could, or if the user gave
    none."""
    fewest_pairs: int = 0
    """Number of pairs (runs of the candidate and the baseline directly after each other) that run even if the test has
    decided, unless they have a verdict. Above 0 where pairs were added to a comparison that ended without a
    verdict, for example because all of its runs were disturbed."""

    @property
    def members(self) -> tuple[int, ...]:
        """Numbers of all trials that may get validation runs in this final comparison, without duplicates."""
        named = (*((self.baseline,) if self.baseline is not None else ()), *self.candidates, *self.defaults)
        return tuple(dict.fromkeys(named))

    @property
    def rivals(self) -> tuple[int, ...]:
        """Numbers of the trials that may be compared with the baseline."""
        return tuple(number for number in self.members if number != self.baseline)

    @property
    def needs_runs(self) -> bool:
        """Whether the final comparison must run any trial again before it can decide."""
        return bool(self.candidates) or len(self.defaults) > 1
