"""Configurations told apart: the knobs in which they differ, where their words do not show it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import StudyResult
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.wording.backend_words import backend_name
from shardtune.service.wording.knob_words import KNOBS, knob_name
from shardtune.tuner.search.space.flat import flatten

_MOST = 3
_MOST_CHANGES = 6


def knob_value(name: str, value: Any) -> str:
    """A knob's value in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "backend":
        return backend_name(str(value))
    if name in KNOBS and str(value) in KNOBS[name].values:
        return KNOBS[name].values[str(value)]
    if isinstance(value, int) and value >= 10_000:
        return f"{value / 1e6:g} M" if value >= 1e6 else f"{value:,}"
    return str(value)


def distinct(configs: Sequence[TrialConfig]) -> list[str]:
    """Each in words; those that would read alike with the knobs they differ in: `DDP, micro batch 2 (static graph yes)`."""
    alike = defaultdict(list)
    for index, config in enumerate(configs):
        alike[config.describe()].append(index)
    found = [config.describe() for config in configs]
    for group in (group for group in alike.values() if len(group) > 1):
        tables = [flatten(configs[index]) for index in group]
        knobs = [knob for knob in tables[0] if len({repr(table.get(knob)) for table in tables}) > 1]
        for index, table in zip(group, tables, strict=True):
            if knobs:
                found[index] += f" ({_told(table, knobs)})"
    return found


def of_trials(trials: Sequence[Trial]) -> dict[int, str]:
    """The trials of a study by number, each in words that no other has where they differ in a knob."""
    found = distinct([trial.config for trial in trials])
    return {trial.number: text for trial, text in zip(trials, found, strict=True)}


def changes(result: StudyResult) -> str:
    """What the best does otherwise than the baseline: `micro batch 1 → 4, static graph no → yes`; empty for the same."""
    was, now = flatten(result.baseline.config), flatten(result.best.config)
    knobs = [knob for knob in now if knob in was and was[knob] != now[knob]]
    if not knobs or result.baseline.trial_number == result.best.trial_number:
        return ""
    told = [f"{knob_name(k)} {knob_value(k, was[k])} → {knob_value(k, now[k])}" for k in knobs[:_MOST_CHANGES]]
    return ", ".join(told) + (f" and {len(knobs) - _MOST_CHANGES} more" if len(knobs) > _MOST_CHANGES else "")


def _told(table: Mapping[str, Any], knobs: Sequence[str]) -> str:
    told = [f"{knob_name(knob)} {knob_value(knob, table[knob])}" for knob in knobs[:_MOST] if knob in table]
    return ", ".join(told) + (" …" if len(knobs) > _MOST else "")
