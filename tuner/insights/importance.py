"""Importance of each knob for speed, computed by PED-ANOVA from a study's feasible trials.

Watanabe, Bansal and Hutter, PED-ANOVA (IJCAI 2023, arXiv:2304.10255), with conditional knobs as in Conditional
PED-ANOVA (arXiv:2601.20800), both as Optuna 5 implements them. Importance is how far the distribution of a knob's
values among the fastest trials differs from that among all. The sampler's preferences are in both distributions, so
they do not count.
"""

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from shardtune.api_schemas.studies.insights import Importance, KnobImportance
from shardtune.api_schemas.training.search_space import KnobValue

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=ExperimentalWarning, message=".*normalize.*")
# The evaluator takes the lowest targets for the best, so speeds are passed with a minus.
warnings.filterwarnings("ignore", message="PedAnovaImportanceEvaluator computes")
# The warning says that a knob which a single trial has (or lacks) is left out of the sum.
warnings.filterwarnings("ignore", message="Some regimes for parameter")

FEWEST_TRIALS = 15
# Optuna advises at least so many; more than a third of all would be no selection.
FASTEST = 5
"""Minimum size, in trials, of the group of fastest trials. The knob values of this group are compared with those of all
trials."""
# Of simulated searches of 15, 20 and 40 trials in which one knob mattered most, it came first in all; it was separated
# from chance in 7, 10 and 12 of 12 (a tenth: 7, 10, 11).
_TOP = 0.25
"""Fraction of a study's trials that form the group of fastest trials, where it gives more than the minimum number."""
_SHUFFLINGS = 19
"""Number of random assignments of speeds to trials. A knob counts as important if its importance exceeds all of them:
for a knob without effect the chance is one in twenty (Barnard's Monte Carlo test, 1963)."""

Row = tuple[tuple[tuple[str, KnobValue], ...], float]
"""Knob values of a trial, with the trial's speed."""


@dataclass(frozen=True)
class _Scale:
    """Scale on which a knob's values are given to Optuna. Numbers are given by their position in rising order if there
    are more than two; all other values are given by name."""

    positions: dict[str, int]
    distribution: BaseDistribution

    def scaled(self, value: KnobValue) -> int | str:
        """Convert a knob's value for Optuna: to its position in rising order, or to its name."""
        return self.positions[repr(value)] if isinstance(self.distribution, IntDistribution) else repr(value)


@lru_cache(maxsize=64)
def importance(rows: tuple[Row, ...]) -> Importance:
    """Importance for speed of every knob that took several values, the most important first; the same rows give the
    same result."""
    fastest = max(FASTEST, round(_TOP * len(rows)))
    if len(rows) < FEWEST_TRIALS:
        reason = f"{len(rows)} feasible trials say too little about knobs; {FEWEST_TRIALS} are needed"
        return Importance(knobs=(), trials=len(rows), fastest=0, reason=reason)
    tables = [dict(knobs) for knobs, _ in rows]
    scales = _scales(tables)
    if not scales:
        return Importance(knobs=(), trials=len(rows), fastest=0, reason="all feasible trials have the same knobs")
    study, speeds = _build_study(tables, scales), [speed for _, speed in rows]
    importances = _evaluate(study, scales, speeds, fastest)
    total = sum(importances.values())
    if total <= 0:
        reason = "the fastest trials have the same values as the others"
        return Importance(knobs=(), trials=len(rows), fastest=fastest, reason=reason)
    chance = _largest_by_chance(study, scales, speeds, fastest)
    knobs = [
        KnobImportance(
            knob=name,
            importance=value / total,
            is_above_chance=value > chance[name],
            trials=sum(name in table for table in tables),
        )
        for name, value in sorted(importances.items(), key=lambda item: (-item[1], item[0]))
    ]
    return Importance(knobs=tuple(knobs), trials=len(rows), fastest=fastest)


def _scales(tables: Sequence[dict[str, KnobValue]]) -> dict[str, _Scale]:
    """Scale (positions or names for Optuna) of each knob that took several values, by knob name."""
    scales: dict[str, _Scale] = {}
    for name in sorted({name for table in tables for name in table}):
        values = {repr(table[name]): table[name] for table in tables if name in table}
        if len(values) < 2:
            continue
        is_ordered = len(values) > 2 and all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in values.values()
        )
        ordered = sorted(values, key=lambda key: float(values[key])) if is_ordered else sorted(values)
        distribution = IntDistribution(0, len(ordered) - 1) if is_ordered else CategoricalDistribution(ordered)
        scales[name] = _Scale({key: place for place, key in enumerate(ordered)}, distribution)
    return scales


def _build_study(tables: Sequence[dict[str, KnobValue]], scales: dict[str, _Scale]) -> optuna.Study:
    """Optuna study of the trials without their speeds, which are assigned anew for each evaluation."""
    study = optuna.create_study()
    scaled_knobs = (
        {name: scales[name].scaled(value) for name, value in table.items() if name in scales} for table in tables
    )
    study.add_trials(
        [
            create_trial(value=0.0, params=params, distributions={name: scales[name].distribution for name in params})
            for params in scaled_knobs
        ]
    )
    return study


def _largest_by_chance(
    study: optuna.Study, scales: dict[str, _Scale], speeds: Sequence[float], fastest: int
) -> dict[str, float]:
    """Importance for speed that each knob gets by chance alone: the largest over several random assignments of speeds
    to trials."""
    rng = random.Random(0)
    largest = dict.fromkeys(scales, 0.0)
    for _ in range(_SHUFFLINGS):
        shuffled = _evaluate(study, scales, rng.sample(speeds, len(speeds)), fastest)
        largest = {name: max(value, shuffled[name]) for name, value in largest.items()}
    return largest


def _evaluate(
    study: optuna.Study, scales: dict[str, _Scale], speeds: Sequence[float], fastest: int
) -> dict[str, float]:
    """Compute each knob's importance for speed, by name, if the trials had these speeds."""
    evaluator = PedAnovaImportanceEvaluator(target_quantile=fastest / len(speeds))
    return get_param_importances(
        study, evaluator=evaluator, params=sorted(scales), target=lambda trial: -speeds[trial.number], normalize=False
    )
