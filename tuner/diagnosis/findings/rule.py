"""Conversion of a rule's evidence to a finding: the remedy is the permitted change of knobs that should save most."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from shardtune.api_schemas.trials.diagnosis import Finding, FindingKind
from shardtune.tuner.diagnosis.findings.facts import Facts
from shardtune.tuner.diagnosis.findings.traced_trial import Knobs, TracedTrial

Rule = Callable[[Facts], Finding | None]


class Evidence(NamedTuple):
    """Evidence for a finding: its kind, a text, and the measured value with the threshold that it exceeds."""

    kind: FindingKind
    evidence: str
    measured: float
    threshold: float


class Remedy(NamedTuple):
    """Remedy for a finding: the knobs to change, and the fraction of the step that the change should save."""

    knobs: Knobs
    gain: float


def finding_in_words(evidence: Evidence, remedy: str, gain: float) -> Finding:
    """Build a finding whose remedy is a text, because no knob removes the cause or the job's knobs are unknown."""
    return Finding(**evidence._asdict(), remedy=remedy, expected_gain=_as_fraction(gain))


def finding_with_change(
    facts: Facts, evidence: Evidence, changes: Iterable[Remedy], otherwise: str, gain: float
) -> Finding | None:
    """Build a finding with the best change of knobs that the trial permits; None where it permits none. If the trial is
    unknown, the remedy is a text."""
    if facts.trial is None:
        return finding_in_words(evidence, otherwise, gain)
    best = best_of(facts.trial, changes)
    if best is None:
        return None
    remedy = describe_change(facts.trial, best.knobs)
    return Finding(**evidence._asdict(), remedy=remedy, knobs=best.knobs, expected_gain=_as_fraction(best.gain))


def best_of(trial: TracedTrial, changes: Iterable[Remedy]) -> Remedy | None:
    """Permitted change of knobs that should save most; of equal changes, the first; None where no change is
    permitted."""
    ordered = sorted(changes, key=lambda remedy: -remedy.gain)
    # Admission builds the memory prediction, so it is checked from the best down and stops at the first.
    return next((remedy for remedy in ordered if trial.admits(remedy.knobs)), None)


def describe_change(trial: TracedTrial, knobs: Knobs) -> str:
    """Text that describes changed knobs, such as `micro_batch 8 instead of 1`."""
    return " and ".join(f"{name} {_text(new)} instead of {_text(trial.value(name))}" for name, new in knobs.items())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_fraction(gain: float) -> float:
    return round(min(1.0, max(0.0, gain)), 4)
