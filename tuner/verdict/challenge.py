"""A challenge: does the incumbent still stand against a few others, and is it cheap to see that it does?

The incumbent and each challenger run once; the fastest challenger near the incumbent then runs in pairs with it. The
challenger wins by the exact sequential test of `tuner.verdict.paired_test` alone. What is added here is when to give up on it
(futility): as soon as it has lost `LOSSES` pairs, the two runs that made it the rival among them, and their median shows no
gain that would be worth a change. Giving up
never names a winner, so it leaves the test's error as it is (a non-binding futility rule: Jennison & Turnbull, Group
Sequential Methods, 2000, §4.6); what it costs in power is in docs/decisions/0006-challenge.md.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study import FEWEST_PAIRS
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import paired_test
from shardtune.tuner.verdict.contenders import contender
from shardtune.tuner.verdict.final_comparison import NEAR
from shardtune.tuner.verdict.paired_test import WORTHWHILE, Decision
from shardtune.tuner.verdict.ranking import search_speeds

MOST_CHALLENGERS = 3
RUNNER_UPS = 2
PAIRS = 13
"""At most: a challenger wins with up to two of them lost."""
LOSSES = 2

Finding = Literal["kept", "faster", "inconclusive"]
"""`inconclusive`: the challenger looks faster by more than `WORTHWHILE`, but that could not be shown."""

Predict = Callable[[Sequence[TrialConfig]], NDArray[np.float64] | None]
"""tokens_per_s_per_gpu of configurations, 0 where one does not fit; None where the hardware is unknown."""


def decide(log_ratios: Sequence[float], most_pairs: int, first: float) -> Decision:
    """What the pairs so far say: as `paired_test.decide`, but `not_shown` also where going on is futile.

    `first` is the log-ratio of the two runs that made this challenger the rival. It was chosen for it, so it counts
    towards giving up only, never towards a win.
    """
    lost, pairs, every = sum(ratio <= 0 for ratio in log_ratios), len(log_ratios), (first, *log_ratios)
    if lost <= paired_test.boundary()[pairs]:
        return "faster"
    if pairs >= most_pairs:
        return "not_shown"
    if pairs and sum(ratio <= 0 for ratio in every) >= LOSSES and _is_small(every):
        return "not_shown"
    # It still looks faster: with as many pairs as an interval needs, more of them would not make it a winner.
    return "not_shown" if pairs >= FEWEST_PAIRS and lost > paired_test.boundary()[most_pairs] else "open"


def finding(log_ratios: Sequence[float], most_pairs: int, first: float | None) -> Finding:
    """What a challenge that has ended found. `first` None: no challenger came near enough to be paired."""
    if first is None:
        return "kept"
    match decide(log_ratios, most_pairs, first):
        case "faster":
            return "faster"
        case "not_shown" | "open" as decision:
            # One that ended while it was open ran out of trials, runs or workers.
            return "kept" if decision == "not_shown" and _is_small((first, *log_ratios)) else "inconclusive"
        case decision:
            assert_never(decision)


def _is_small(log_ratios: Sequence[float]) -> bool:
    return median(log_ratios) <= math.log1p(WORTHWHILE)


def first_ratio(history: Sequence[Observation], baseline: int, challenger: int) -> float:
    """log(challenger / baseline) of their search runs."""
    runs = {obs.number: obs.measurement for obs in history}
    ours, theirs = runs[baseline], runs[challenger]
    assert ours is not None and theirs is not None
    return math.log(theirs.tokens_per_s_per_gpu / ours.tokens_per_s_per_gpu)


def rival(field: Finalists, history: Sequence[Observation]) -> Finalists:
    """The final comparison of the incumbent with its fastest challenger alone; without any where none came near the incumbent."""
    speeds = search_speeds(history)
    assert field.baseline is not None
    near = [number for number in field.candidates if speeds[number] >= NEAR * speeds[field.baseline]]
    if near:
        return replace(field, candidates=(near[0],))
    note = f"no challenger came within {1 - NEAR:.0%} of the incumbent's speed"
    return replace(field, candidates=(), notes=(*field.notes, note) if field.candidates else field.notes)


def runner_ups(history: Sequence[Observation], incumbent: TrialConfig) -> tuple[TrialConfig, ...]:
    """The other trials of a study in the order in which they are worth running again.

    First the fastest, then the fastest of each backend that is not represented yet: a change of hardware or software
    moves backends against each other rather than the sizes of a bucket. Then the rest by speed.
    """
    others = sorted(
        (obs for obs in history if _is_measured(obs) and obs.config != incumbent),
        key=lambda obs: -contender(obs).tokens_per_s_per_gpu,
    )
    chosen, seen = [obs.config for obs in others[:1]], {incumbent.backend, *(obs.config.backend for obs in others[:1])}
    for obs in others:
        if obs.config.backend not in seen:
            seen.add(obs.config.backend)
            chosen.append(obs.config)
    return (*chosen, *(obs.config for obs in others if obs.config not in chosen))


def favourites(
    candidates: Iterable[TrialConfig],
    history: Sequence[Observation],
    incumbent: TrialConfig,
    then: Predict,
    now: Predict,
) -> tuple[TrialConfig, ...]:
    """Configurations expected to be faster than the incumbent by a worthwhile gain, the fastest first.

    Expected of one that was measured: its speed times what the predictor says has changed (`now` / `then`). Of one
    that was not: what the predictor says now, corrected by its typical error on those that were.
    """
    speeds = {obs.config: contender(obs).tokens_per_s_per_gpu for obs in history if _is_measured(obs)}
    rejected = {obs.config for obs in history if obs.state is TrialState.INFEASIBLE}
    wanted = list(dict.fromkeys([incumbent, *speeds, *(config for config in candidates if config not in rejected)]))
    present, past = now(wanted), then(wanted)
    if present is None or past is None or incumbent not in speeds:
        return ()
    errors = [
        speeds[config] / past[at] if config in speeds and past[at] > 0 else math.nan for at, config in enumerate(wanted)
    ]
    typical = float(np.nanmedian(errors)) if not all(map(math.isnan, errors)) else 1.0
    expected = present * np.where(np.isnan(errors), typical, errors)
    bar = expected[0] * (1 + WORTHWHILE)
    ranked = sorted(range(1, len(wanted)), key=lambda at: -float(expected[at]))
    return tuple(wanted[at] for at in ranked if expected[0] > 0 and expected[at] >= bar)


def challengers(
    known: TrialConfig | None,
    runners: Sequence[TrialConfig],
    favoured: Sequence[TrialConfig],
    incumbent: TrialConfig,
) -> tuple[TrialConfig, ...]:
    """Whom to run: what else is served for the case, two runner-ups, favourites, then more runner-ups; three in all."""
    every = [*([known] if known is not None else []), *runners[:RUNNER_UPS], *favoured, *runners[RUNNER_UPS:]]
    return tuple(dict.fromkeys(config for config in every if config != incumbent))[:MOST_CHALLENGERS]


def _is_measured(obs: Observation) -> bool:
    return obs.state is TrialState.COMPLETE and obs.measurement is not None
