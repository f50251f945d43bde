"""Checks of sentences about the cost of checkpoints, the choice of the baseline, and how many pairs decide."""

from statistics import median

from benchmarks.busy.evidence import Evidence, Match


def checkpoint_cost(evidence: Evidence, match: Match) -> bool:
    """Whether the share of time and the speed of a checkpoint follow from a stored resume check."""
    every_s = float(match[2].replace(",", ""))
    costs = {
        (_share_of_time(save_s / (every_s + save_s)), f"{size / save_s / 1e6:,.0f}")
        for save_s, size in evidence.rows.saves
    }
    return any(share == match[1] and match[3] in (None, speed) for share, speed in costs)


def _share_of_time(fraction: float) -> str:
    return "less than 0.01%" if fraction < 0.0001 else f"{fraction:.2%}"


def was_default(evidence: Evidence, match: Match) -> bool:
    """Whether the baseline is a default, chosen as stated: by that many repeated defaults, or as the only one."""
    rows, baseline = evidence.rows, evidence.paired[1]
    defaults = [trial.number for trial in rows.trials if trial.origin == "default" and trial.state == "complete"]
    repeated = [number for number in defaults if rows.speeds(number)]
    if match[1] == "the only feasible one that ran":
        return defaults == [baseline]
    if match[1] == "by its search run":
        return baseline in defaults and len(repeated) <= 1
    return baseline in repeated and len(repeated) == int(match[2])


def were_enough(evidence: Evidence, match: Match) -> bool:
    """Whether the last so many pairs were undisturbed, and show what ended the comparison."""
    # Blocks before the pairs may have measured both, too.
    pairs = evidence.rows.pairs(*evidence.paired)[-int(match[1]) :]
    is_quiet = not any(run.is_disturbed for pair in pairs for run in pair)
    ratios = [first.speed / second.speed for first, second in pairs]
    low, high = _interval(evidence) or (0.0, 0.0)
    is_shown = low > 1 and min(ratios, default=0.0) > 1 if match[2] else median(ratios) < 1.05 and high > 0
    return len(pairs) == int(match[1]) and is_quiet and is_shown


def is_uncertain(evidence: Evidence, match: Match) -> bool:
    """Whether the stated interval is the answer's, and holds the middle of that many pairs of the rows."""
    ratios, interval = evidence.pair_ratios[-int(match[3]) :], _interval(evidence)
    is_stated = interval is not None and (match[1], match[2]) == (f"{interval[0]:.2f}", f"{interval[1]:.2f}")
    return is_stated and len(ratios) == int(match[3]) and float(match[1]) <= median(ratios) <= float(match[2])


def _interval(evidence: Evidence) -> tuple[float, float] | None:
    """Interval of the answer's speed-up; None without a speed-up."""
    speedup = evidence.answer.get("speedup")
    return None if speedup is None else (float(speedup["ci95"][0]), float(speedup["ci95"][1]))
