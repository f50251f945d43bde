"""How a rule becomes a finding: of the changes that would answer it, the one that is allowed and expected to save most."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from shardtune.api_schemas.trials.diagnosis import Finding, FindingKind
from shardtune.tuner.diagnosis.findings.facts import Facts
from shardtune.tuner.diagnosis.findings.traced_trial import Knobs, TracedTrial

Rule = Callable[[Facts], Finding | None]


class Seen(NamedTuple):
    """What a rule saw."""

    kind: FindingKind
    evidence: str
    measured: float
    threshold: float


class Remedy(NamedTuple):
    """Knobs to change, and the share of the step that this is expected to save."""

    knobs: Knobs
    gain: float


def in_words(seen: Seen, remedy: str, gain: float) -> Finding:
    """A finding that no knob answers, or of a job whose knobs are not known."""
    return Finding(**seen._asdict(), remedy=remedy, expected_gain=_share(gain))


def answered(facts: Facts, seen: Seen, changes: Iterable[Remedy], otherwise: str, gain: float) -> Finding | None:
    """With the best change that the trial admits, None where it admits none; in words where the trial is not known."""
    if facts.trial is None:
        return in_words(seen, otherwise, gain)
    best = best_of(facts.trial, changes)
    if best is None:
        return None
    remedy = told(facts.trial, best.knobs)
    return Finding(**seen._asdict(), remedy=remedy, knobs=best.knobs, expected_gain=_share(best.gain))


def best_of(trial: TracedTrial, changes: Iterable[Remedy]) -> Remedy | None:
    """The one that is expected to save most of those that are admitted; of equal ones the first."""
    ordered = sorted(changes, key=lambda one: -one.gain)
    return next((one for one in ordered if trial.admits(one.knobs)), None)


def told(trial: TracedTrial, knobs: Knobs) -> str:
    """Such as `micro_batch 8 instead of 1`."""
    return " and ".join(f"{name} {_text(new)} instead of {_text(trial.value(name))}" for name, new in knobs.items())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _share(gain: float) -> float:
    return round(min(1.0, max(0.0, gain)), 4)
