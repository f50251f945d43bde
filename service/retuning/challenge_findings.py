"""Result of a challenge (challengers against the recommended configuration), as a finding and as text."""

import math

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study_result import Speedup, Verdict
from shardtune.api_schemas.trials.trial import TrialOrigin
from shardtune.db.tables.studies import StudyRow
from shardtune.service.planning import system_study_plan
from shardtune.service.retuning import challengers
from shardtune.tuner.verdict import challenge
from shardtune.tuner.verdict.challenge import ChallengeOutcome


def finding_of(session: Session, study: StudyRow) -> ChallengeOutcome:
    """Turn the result of a complete challenge study into a finding of its retune (repeated measurement of a
    recommendation). The challenge compared the recommended configuration with up to three others.
    """
    assert study.result is not None
    history, result = tuple(challengers.observations_of(session, study)), study.result
    if result.verdict is Verdict.TOO_BUSY:
        return "inconclusive"
    if result.final_comparison is None:
        return "kept"  # No challenger was feasible.
    rival = result.best if result.candidate is None else result.candidate
    # The two search runs that made the challenger the rival count as a pair towards giving up, never towards a win
    # (decision 6).
    first_ratio = challenge.search_log_ratio(history, result.baseline.trial_number, rival.trial_number)
    disturbed_pairs = result.final_comparison.disturbed_pairs
    if result.verdict is Verdict.NOT_FASTER:
        return "kept"
    finding = challenge.outcome(log_ratios(study), study.spec.budget.max_pairs, first_ratio, disturbed_pairs)
    # A challenger that won disturbed pairs alone is no answer that could replace the incumbent.
    return "inconclusive" if finding == "faster" and result.verdict is not Verdict.CONFIRMED else finding


def percent(speedup: Speedup) -> str:
    """Format a speed-up with its 95 % interval as text: `+12.3 % [8.1, 15.0]`."""
    low, high = speedup.ci95
    return f"{100 * (speedup.value - 1):+.1f} % [{100 * (low - 1):.1f}, {100 * (high - 1):.1f}]"


def describe_pairs(log_ratios: list[float]) -> str:
    """Describe in words the paired runs of a challenge, in which a challenger ran beside the recommended
    configuration: the pairs that the challenger won, and the median speed ratio.
    """
    median_ratio = math.exp(sorted(log_ratios)[len(log_ratios) // 2]) if log_ratios else 1.0
    won = sum(ratio > 0 for ratio in log_ratios)
    return (
        f"the fastest challenger won {won} of {len(log_ratios)} pairs with the incumbent, "
        f"at {median_ratio:.3f} times its speed in the median"
    )


def log_ratios(study: StudyRow) -> list[float]:
    """Logarithms of the speed ratio challenger / incumbent (recommended configuration), one for each pair of runs;
    empty if no challenger was feasible.
    """
    finalists = study.result.final_comparison if study.result is not None else None
    return [math.log(ratio) for ratio in finalists.ratios] if finalists is not None else []


def has_infeasible_incumbent(session: Session, study: StudyRow) -> bool:
    """Whether the incumbent's (recommended) configuration can no longer be run."""
    incumbent = next(
        (obs for obs in challengers.observations_of(session, study) if obs.origin == TrialOrigin.BASELINE), None
    )
    return system_study_plan.is_infeasible(incumbent)
