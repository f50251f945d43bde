"""Descriptions that distinguish configurations: they name the differing knobs if the short descriptions are equal."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_result import Contender, StudyResult
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.wording.backend_words import backend_name
from shardtune.service.wording.knob_words import KNOBS, knob_name
from shardtune.tuner.search.space.flat import flatten

_MOST_KNOBS = 3
_MOST_CHANGES = 6


def knob_value(name: str, value: Any) -> str:
    """Format the value of a knob (tuned parameter) for a person."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "backend":
        return backend_name(str(value))
    if name in KNOBS and str(value) in KNOBS[name].values:
        return KNOBS[name].values[str(value)]
    text = str(value)
    if isinstance(value, int) and value >= 10_000:
        text = f"{value / 1e6:g} M" if value >= 1e6 else f"{value:,}"
    unit = KNOBS[name].unit if name in KNOBS else ""
    return f"{text} {unit}" if unit and isinstance(value, (int, float)) else text


def distinct_descriptions(configs: Sequence[TrialConfig]) -> list[str]:
    """Describe each configuration of a list. Configurations with equal descriptions also get the knobs in which they
    differ: `DDP, micro batch 2 (static graph yes)`."""
    alike = defaultdict(list)
    for index, config in enumerate(configs):
        alike[config.describe()].append(index)
    descriptions = [config.describe() for config in configs]
    for group in (group for group in alike.values() if len(group) > 1):
        tables = [flatten(configs[index]) for index in group]
        # repr: `False` and `0`, or `1` and `1.0`, are equal in a set but not the same setting.
        knobs = [knob for knob in tables[0] if len({repr(table.get(knob)) for table in tables}) > 1]
        for index, text in zip(group, _knob_lists(tables, knobs), strict=True):
            descriptions[index] += text
    return descriptions


def describe_trials(trials: Sequence[Trial]) -> dict[int, str]:
    """Return a description of each trial of a study, by the trial's number; trials that differ in a knob get different
    descriptions."""
    descriptions = distinct_descriptions([trial.config for trial in trials])
    return {trial.number: text for trial, text in zip(trials, descriptions, strict=True)}


def describe_among(contender: Contender, trials: Sequence[Trial]) -> str:
    """Describe a configuration of an answer. If other trials of the study have the same short description, add the
    trial's number and the knobs in which these trials differ."""
    alike = [trial for trial in trials if trial.description == contender.description]
    if len(alike) < 2:
        return contender.description
    described = describe_trials(alike).get(contender.trial_number, contender.description)
    return f"trial {contender.trial_number}, {described}"


def changed_knobs(result: StudyResult) -> str:
    """List the knobs in which the best configuration differs from the baseline: `micro batch 1 → 4, static graph no →
    yes`. Empty if the baseline is the best configuration."""
    baseline, best = flatten(result.baseline.config), flatten(result.best.config)
    # Knobs that only one of the backends has are left out: the description already names the backends.
    knobs = [knob for knob in best if knob in baseline and baseline[knob] != best[knob]]
    if not knobs or result.baseline.trial_number == result.best.trial_number:
        return ""
    shown = [f"{knob_name(k)} {knob_value(k, baseline[k])} → {knob_value(k, best[k])}" for k in knobs[:_MOST_CHANGES]]
    return ", ".join(shown) + (f" and {len(knobs) - _MOST_CHANGES} more" if len(knobs) > _MOST_CHANGES else "")


def _knob_lists(tables: Sequence[Mapping[str, Any]], knobs: Sequence[str]) -> list[str]:
    """List the given knobs of each configuration in brackets; empty without knobs. At most three knobs are listed, or as
    many as it takes to tell the configurations apart."""
    if not knobs:
        return [""] * len(tables)
    count, all_knobs = min(_MOST_KNOBS, len(knobs)), {_knob_list(table, knobs) for table in tables}
    while len({_knob_list(table, knobs[:count]) for table in tables}) < len(all_knobs):
        count += 1
    more = " …" if count < len(knobs) else ""
    return [f" ({_knob_list(table, knobs[:count])}{more})" for table in tables]


def _knob_list(table: Mapping[str, Any], knobs: Sequence[str]) -> str:
    return ", ".join(f"{knob_name(knob)} {knob_value(knob, table[knob])}" for knob in knobs if knob in table)
