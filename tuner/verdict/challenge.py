"""Challenge of an incumbent (the configuration in use): a cheap check whether it is still the fastest among a few
rivals.

The incumbent and each challenger run once; the fastest challenger then runs in pairs with the incumbent. The challenger wins by the exact sequential test of `tuner.verdict.paired_test` alone. This module adds when to give
up (futility): as soon as the challenger has lost `FUTILE_LOSSES` pairs, counting the two search runs because of which
it was chosen, and their median shows no worthwhile gain. Giving up never names a winner, so the test's error does not
change (a non-binding futility rule: Jennison & Turnbull, Group Sequential Methods, 2000, §4.6). The loss of statistical
power is in docs/decisions/0006-challenge.md.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.budget import FEWEST_PAIRS
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import paired_test
from shardtune.tuner.verdict.contenders import contender
from shardtune.tuner.verdict.paired_test import WORTHWHILE, Decision

MAX_CHALLENGERS = 3
RUNNER_UPS = 2
MAX_PAIRS = 13
"""Maximum number of paired runs in a challenge (incumbent against challenger): with this many, a challenger may lose
two pairs and still win."""
FUTILE_LOSSES = 2

ChallengeOutcome = Literal["kept", "faster", "inconclusive"]
"""Outcome of a challenge. `inconclusive`: the challenger seems faster by more than `WORTHWHILE`, but the pairs do not
prove it."""

Predict = Callable[[Sequence[TrialConfig]], NDArray[np.float64] | None]
"""Predictor of tokens_per_s_per_gpu for a list of configurations, 0 for a configuration that does not fit; returns None
where the hardware is unknown."""


def decide(log_ratios: Sequence[float], most_pairs: int, first_log_ratio: float | None) -> Decision:
    """Decide a challenge from the pairs run so far, by the sign test of `paired_test.decide`; also return `not_shown`
    as soon as further pairs are futile.

    `first_log_ratio` is the logarithm of the speed ratio of the two search runs, because of which this challenger was
    chosen; None where either search run was disturbed.
    """
    # `first` was the reason to choose this challenger, so it counts towards giving up only, never towards a win.
    lost, pairs, every = (
        sum(ratio <= 0 for ratio in log_ratios),
        len(log_ratios),
        _with_first(log_ratios, first_log_ratio),
    )
    if lost <= paired_test.boundary()[pairs]:
        return "faster"
    if pairs >= most_pairs:
        return "not_shown"
    if pairs and sum(ratio <= 0 for ratio in every) >= FUTILE_LOSSES and _is_small(every):
        return "not_shown"
    # The challenger still looks faster. Enough pairs for an interval, but no number of further pairs would make it win.
    return "not_shown" if pairs >= FEWEST_PAIRS and lost > paired_test.boundary()[most_pairs] else "open"


def outcome(
    log_ratios: Sequence[float], most_pairs: int, first_log_ratio: float | None, disturbed_pairs: int = 0
) -> ChallengeOutcome:
    """Outcome of a challenge that has ended, from the pairs of its fastest challenger.

    `first_log_ratio` is the logarithm of the speed ratio of the two search runs, None where either was disturbed.
    `disturbed_pairs` is the number of pairs in which a run was disturbed.
    """
    match decide(log_ratios, most_pairs, first_log_ratio):
        case "faster":
            return "faster"
        case "not_shown" | "open" as decision:
            # A challenge that ends while it is open ran out of trials, runs or workers. Pairs that were mostly
            # disturbed show no size of a gain, so they keep nothing.
            is_kept = decision == "not_shown" and _is_small(_with_first(log_ratios, first_log_ratio))
            return "kept" if is_kept and 2 * disturbed_pairs < len(log_ratios) else "inconclusive"
        case decision:
            assert_never(decision)


def _with_first(log_ratios: Sequence[float], first_log_ratio: float | None) -> tuple[float, ...]:
    return (*log_ratios,) if first_log_ratio is None else (first_log_ratio, *log_ratios)


def _is_small(log_ratios: Sequence[float]) -> bool:
    return median(log_ratios) <= math.log1p(WORTHWHILE)


def search_log_ratio(history: Sequence[Observation], baseline: int, challenger: int) -> float | None:
    """Natural logarithm of the challenger's speed over the baseline's speed, each measured in the trial's search run;
    None where either run was disturbed."""
    trials = {obs.number: obs for obs in history}
    baseline_run, challenger_run = trials[baseline].measurement, trials[challenger].measurement
    assert baseline_run is not None and challenger_run is not None
    if trials[baseline].is_disturbed or trials[challenger].is_disturbed:
        return None
    return math.log(challenger_run.tokens_per_s_per_gpu / baseline_run.tokens_per_s_per_gpu)


def finalists_with_rival(field: Finalists) -> Finalists:
    """Finalists of a challenge: the incumbent and its fastest challenger. The challenger gets validation runs beside the
    incumbent even where its search run was slow."""
    return replace(field, candidates=field.candidates[:1])


def runner_ups(history: Sequence[Observation], incumbent: TrialConfig) -> tuple[TrialConfig, ...]:
    """Order a study's measured trials, without the incumbent, by how much it is worth to run each a second time.

    The fastest trial comes first, then the fastest of each backend not represented yet, then the remaining trials by
    speed.
    """
    measured = sorted(
        (obs for obs in history if _is_measured(obs) and obs.config != incumbent),
        key=lambda obs: -contender(obs).tokens_per_s_per_gpu,
    )
    # A change of hardware or software shifts backends against each other more than the sizes of a bucket.
    chosen, backends = (
        [obs.config for obs in measured[:1]],
        {incumbent.backend, *(obs.config.backend for obs in measured[:1])},
    )
    for obs in measured:
        if obs.config.backend not in backends:
            backends.add(obs.config.backend)
            chosen.append(obs.config)
    return (*chosen, *(obs.config for obs in measured if obs.config not in chosen))


def favourites(
    candidates: Iterable[TrialConfig],
    history: Sequence[Observation],
    incumbent: TrialConfig,
    predict_before: Predict,
    predict_now: Predict,
) -> tuple[TrialConfig, ...]:
    """Configurations predicted to be faster than the incumbent by a worthwhile gain, the fastest first.

    The expected speed of a measured configuration is its speed times the predicted change (`predict_now` /
    `predict_before`). For an unmeasured configuration it is the present prediction, corrected by the predictor's
    typical error on the measured configurations.
    """
    speeds = {obs.config: contender(obs).tokens_per_s_per_gpu for obs in history if _is_measured(obs)}
    rejected = {obs.config for obs in history if obs.state is TrialState.INFEASIBLE}
    configs = list(dict.fromkeys([incumbent, *speeds, *(config for config in candidates if config not in rejected)]))
    present, past = predict_now(configs), predict_before(configs)
    if present is None or past is None or incumbent not in speeds:
        return ()
    errors = [
        speeds[config] / past[at] if config in speeds and past[at] > 0 else math.nan
        for at, config in enumerate(configs)
    ]
    typical = float(np.nanmedian(errors)) if not all(map(math.isnan, errors)) else 1.0
    expected = present * np.where(np.isnan(errors), typical, errors)
    least_speed = expected[0] * (1 + WORTHWHILE)
    ranked = sorted(range(1, len(configs)), key=lambda at: -float(expected[at]))
    return tuple(configs[at] for at in ranked if expected[0] > 0 and expected[at] >= least_speed)


def challengers(
    other_recommended: TrialConfig | None,
    ranked_trials: Sequence[TrialConfig],
    expected_faster: Sequence[TrialConfig],
    incumbent: TrialConfig,
) -> tuple[TrialConfig, ...]:
    """Choose at most three configurations to run against the incumbent: another study's recommendation for the same
    tuning target, two runner-ups of this study, configurations predicted to be faster, then more runner-ups."""
    candidates = [
        *([other_recommended] if other_recommended is not None else []),
        *ranked_trials[:RUNNER_UPS],
        *expected_faster,
        *ranked_trials[RUNNER_UPS:],
    ]
    return tuple(dict.fromkeys(config for config in candidates if config != incumbent))[:MAX_CHALLENGERS]


def _is_measured(obs: Observation) -> bool:
    return obs.state is TrialState.COMPLETE and obs.measurement is not None
