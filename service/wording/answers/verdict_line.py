"""Verdict of a study on one line, for the command line, the Python API and the answer to share."""

from statistics import median

from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.verdicts import TOO_BUSY_STATE


def verdict_text(result: StudyResult) -> str:
    """Describe a study's verdict, the speed-up with its interval, and what they mean for the baseline, without saying
    how many runs there were."""
    if result.verdict is Verdict.TOO_BUSY:
        return _too_busy(result)
    if result.speedup is None:
        return _without_interval(result)
    low, high = result.speedup.ci95
    interval = f"(95 % interval {low:.2f}x to {high:.2f}x)"
    gain = f"{result.speedup.value:.2f}x as fast as the baseline {interval}"
    if result.verdict is Verdict.CONFIRMED:
        return f"confirmed: {gain}"
    word = "undecided" if result.verdict is Verdict.UNDECIDED else "not faster"
    if result.candidate is None:
        return f"{word}: {gain}; the faster of the two is recommended"
    reached = f"the fastest candidate reached {result.speedup.value:.2f}x its speed {interval}"
    return f"{word}: keep the baseline; {reached}"


def best_name(result: StudyResult) -> str:
    """Name of the row or column with an answer's best configuration. It is the candidate if the machine was too busy to
    show that it is faster than the baseline."""
    is_open = result.verdict is Verdict.TOO_BUSY and result.best.trial_number != result.baseline.trial_number
    return "candidate" if is_open else "recommended"


def _without_interval(result: StudyResult) -> str:
    comparison = result.final_comparison
    if comparison is None:
        return "nothing to compare: keep the baseline"
    if result.verdict is Verdict.NOT_FASTER:
        reached = f"the fastest candidate reached {median(comparison.ratios):.2f}x its speed"
        return f"not faster: keep the baseline; {reached}"
    kept = "keep the baseline until it is decided" if result.candidate else "the faster of the two is recommended"
    return f"undecided: {kept}; too few pairs for an interval"


def _too_busy(result: StudyResult) -> str:
    state = f"too busy: {TOO_BUSY_STATE}; "
    gain = None
    if result.speedup is not None:
        low, high = result.speedup.ci95
        gain = f"{result.speedup.value:.2f}x", f"95 % interval {low:.2f}x to {high:.2f}x"
    if result.best == result.baseline:
        seen = "" if gain is None else f" (so far {gain[0]} the baseline's speed, {gain[1]})"
        return f"{state}keep the baseline{seen}"
    # With --json no other line of the terminal names the recommended configuration.
    candidate = f"trial {result.best.trial_number} ({result.best.description})"
    seen = "it was faster in the pairs" if gain is None else f"it was {gain[0]} as fast as the baseline ({gain[1]})"
    return f"{state}for now, {candidate} is recommended: beside other programs {seen}"
