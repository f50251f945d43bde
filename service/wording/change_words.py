"""Words about the change of configuration that the sampler tests with a trial, and about the gain that it expects."""

from shardtune.api_schemas.trials.trial import KnobChange, Trial, TrialReason, changes_in
from shardtune.service.wording.backend_words import BACKENDS, short_name
from shardtune.service.wording.disambiguate import knob_value
from shardtune.service.wording.knob_words import KNOBS, knob_name

_LEAST_GAIN = 0.0005
"""Smallest expected gain, as a fraction, that is not printed as 0.0%."""


def sampler_note(trial: Trial) -> str:
    """Describe the change of configuration that the sampler tests with a trial. Empty for starting configurations,
    and for samplers that give no reason."""
    return "" if trial.reason is None else f" ({describe_reason(trial.reason)})"


def describe_reason(reason: TrialReason) -> str:
    """Describe why the sampler chose a configuration: `like trial 2, but micro batch 8 instead of 4; expected gain 1.7%`."""
    return f"{tested_change(reason)}; {expected_gain(reason)}"


def tested_change(reason: TrialReason) -> str:
    """Describe the change that a trial tests, and the trial that it changes: `like trial 2, but FSDP2 instead of ZeRO`."""
    like = "" if reason.compared_trial is None else f"like trial {reason.compared_trial}, but "
    return f"{like}{describe_change(reason.tests)}"


def expected_gain(reason: TrialReason) -> str:
    """Describe the gain that the sampler expected of a trial: `expected gain 1.7%`. A gain that would read 0.0%
    is given as an upper bound."""
    gain = reason.expected_gain
    return f"expected gain {'below 0.1%' if abs(gain) < _LEAST_GAIN else f'{gain:.1%}'}"


def describe_change(stored: str) -> str:
    """Rewrite the stored description of the change that a trial tests, with display names of knobs: `freed host memory
    kept by the process instead of returned to the system`."""
    return "; ".join(_part_in_words(part) for part in changes_in(stored))


def _part_in_words(part: KnobChange | str) -> str:
    """Rewrite one change of a knob or of the backend with its display name; a remark stays as it is."""
    if isinstance(part, str):
        return part
    if part.knob == "" and {part.value, part.previous} <= {*BACKENDS}:
        return f"{short_name(part.value)} instead of {short_name(part.previous)}"
    if part.knob not in KNOBS:
        return str(part)
    if part.value in ("True", "False"):
        return f"{'with' if part.value == 'True' else 'without'} {knob_name(part.knob)}"
    new, old = _value_in_words(part.knob, part.value), _value_in_words(part.knob, part.previous)
    return f"{knob_name(part.knob)} {new} instead of {old}"


def _value_in_words(name: str, stored: str) -> str:
    # Changes are stored as text; only a number is shortened to `4 M` or gets its thousands separators.
    return knob_value(name, int(stored) if stored.isdecimal() else stored)
