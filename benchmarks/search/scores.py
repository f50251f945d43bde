"""Figures of a sampler on a table, by the method of the autotuning community (Willemsen et al. 2024): curves against exact
random search, over trials and over GPU-seconds.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median, variance
from typing import Any

import numpy as np

from benchmarks.search.measured import MeasuredTable
from benchmarks.search.replay import CURVE_TRIALS, GOAL, Replay

_AFTER = (5, 10, 20)


def figures(replays: Sequence[Replay], table: MeasuredTable, expected: Sequence[float]) -> dict[str, Any]:
    """Figures that `--json` prints of one sampler; `expected`: random search's share after each number of trials."""
    curve = mean_curve(replays)
    trials = sum(len(replay.shares) for replay in replays)
    return {
        "trials_to_3pct": _quantiles([replay.trials_to_goal for replay in replays], digits=1),
        "gpu_seconds_to_3pct": _quantiles([replay.gpu_seconds_to_goal for replay in replays], digits=1),
        "share_of_best_after": {
            str(count): round(median(shares[min(count, len(shares)) - 1] for shares in map(_shares, replays)), 4)
            for count in _AFTER
        },
        "infeasible_share": round(sum(replay.infeasible for replay in replays) / max(1, trials), 4),
        "ask_ms": round(1e3 * float(np.mean([s for replay in replays for s in replay.ask_s])), 2),
        "area_of_regret_20": round(float(np.mean(1.0 - curve)), 4),
        "score_against_random": round(_score(curve.tolist(), expected), 3),
        "curve": [round(float(share), 4) for share in curve],
    }


def overall(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of each sampler: its median trials to the goal, in the middle of the tables and on the worst; null where
    it never got there."""
    names = [name for table in tables[:1] for name in table["samplers"]]
    medians = {name: [table["samplers"][name]["trials_to_3pct"]["median"] for table in tables] for name in names}
    return {
        name: {"tables": len(tables), "median": _finite(median(finite_or_inf)), "worst": _finite(max(finite_or_inf))}
        for name, values in medians.items()
        if (finite_or_inf := [np.inf if item is None else item for item in values])
    }


def mean_curve(replays: Sequence[Replay]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Mean over seeds of the best share after each of the first trials."""
    rows = [(shares + [shares[-1]] * CURVE_TRIALS)[:CURVE_TRIALS] for shares in map(_shares, replays)]
    return np.asarray(np.mean(np.array(rows), axis=0))


def _shares(replay: Replay) -> list[float]:
    """Shares of a search; empty where the gate rejects everything."""
    return replay.shares or [0.0]


def random_curve(shares: Sequence[float]) -> list[float]:
    """Expected best share after n draws without repeats, exactly: the order statistics of the shares given."""
    ordered = np.sort(np.asarray(shares))
    total, curve = len(ordered), []
    for drawn in range(1, CURVE_TRIALS + 1):
        if drawn >= total:
            curve.append(float(ordered[-1]))
            continue
        # P(the largest of `drawn` is the i-th) by the ratio of consecutive binomials.
        weights = np.zeros(total)
        weights[-1] = drawn / total
        for place in range(total - 2, drawn - 2, -1):
            weights[place] = weights[place + 1] * (place - drawn + 2) / (place + 1)
        curve.append(float((weights * ordered).sum()))
    return curve


def random_median(good: int, total: int) -> int:
    """Trials after which random search has found one of the good with probability of a half."""
    missed = 1.0
    for drawn in range(1, total + 1):
        missed *= max(0, total - good - drawn + 1) / (total - drawn + 1)
        if missed <= 0.5:
            return drawn
    return total


def within_goal(table: MeasuredTable) -> int:
    """Configurations within 3 % of the best."""
    return sum(speed >= GOAL * table.best for speed in table.speeds.values())


def noise(table: MeasuredTable) -> float | None:
    """Standard deviation between runs of one configuration, as a share of its step time; None where none was run twice."""
    times = [[math.log(run.step_time_s) for run in runs if run.step_time_s] for runs in table.runs.values()]
    variances = [variance(again) for again in times if len(again) > 1]
    return round(math.sqrt(fmean(variances)), 4) if variances else None


def _score(curve: Sequence[float], expected: Sequence[float]) -> float:
    """1: the best at once; 0: as random search; below: worse."""
    gains = [(ours - theirs) / (1.0 - theirs) for ours, theirs in zip(curve, expected, strict=True) if theirs < 1.0]
    return float(np.mean(gains)) if gains else 0.0


def _quantiles(values: Sequence[float | None], digits: int) -> dict[str, float | None]:
    """Quantiles over all seeds; a search that never got there counts as infinite, shown as null."""
    recorded_values = np.array([np.inf if value is None else float(value) for value in values])
    results = {
        name: float(np.quantile(recorded_values, share, method="inverted_cdf")) for name, share in _QUANTILES.items()
    }
    return {name: None if np.isinf(value) else _short(value, digits) for name, value in results.items()}


_QUANTILES = {"p10": 0.1, "median": 0.5, "p90": 0.9}


def _finite(value: float) -> float | None:
    return None if np.isinf(value) else _short(value, digits=1)


def _short(value: float, digits: int) -> float:
    return int(value) if value == int(value) else round(value, digits)
