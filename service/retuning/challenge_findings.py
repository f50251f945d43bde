"""Result of a challenge (challengers against the recommended configuration), as a finding and as text."""

import math

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import Speedup, Verdict
from shardtune.api_schemas.trials.trial import TrialOrigin
from shardtune.db.tables.studies import StudyRow
from shardtune.service.planning import system_study_plan
from shardtune.service.retuning import challengers
from shardtune.tuner.verdict import challenge
from shardtune.tuner.verdict.challenge import ChallengeOutcome


def finding_of(session: Session, study: StudyRow) -> ChallengeOutcome:
    """Convert the result of a complete challenge study into a finding of its retune (repeated measurement of a
    recommendation).
    """
    if study.result is not None and study.result.verdict is Verdict.TOO_BUSY:
        return "inconclusive"
    history = tuple(challengers.observations_of(session, study))
    finalists = study.result.final_comparison if study.result is not None else None
    first_ratio = None
    # The two search runs that made the challenger the rival count as a pair towards giving up, never towards a win
    # (decision 6).
    if study.result is not None and finalists is not None:
        first_ratio = challenge.search_log_ratio(history, study.result.baseline.trial_number, finalists.candidates[0])
    return challenge.outcome(log_ratios(study), study.spec.budget.max_pairs, first_ratio)


def percent(speedup: Speedup) -> str:
    """Format a speed-up with its 95 % interval as text: `+12.3 % [8.1, 15.0]`."""
    low, high = speedup.ci95
    return f"{100 * (speedup.value - 1):+.1f} % [{100 * (low - 1):.1f}, {100 * (high - 1):.1f}]"


def describe_pairs(log_ratios: list[float]) -> str:
    """Describe the paired runs of a challenge in words: pairs won by the challenger, and the median speed ratio."""
    median_ratio = math.exp(sorted(log_ratios)[len(log_ratios) // 2]) if log_ratios else 1.0
    won = sum(ratio > 0 for ratio in log_ratios)
    return (
        f"the fastest challenger won {won} of {len(log_ratios)} pairs with the incumbent, "
        f"at {median_ratio:.3f} times its speed in the median"
    )


def log_ratios(study: StudyRow) -> list[float]:
    """Logarithms of the speed ratio challenger / incumbent, one for each pair of runs; empty if no challenger was close
    enough to be paired.
    """
    finalists = study.result.final_comparison if study.result is not None else None
    return [math.log(ratio) for ratio in finalists.ratios] if finalists is not None else []


def has_infeasible_incumbent(session: Session, study: StudyRow) -> bool:
    """Whether the incumbent's (recommended) configuration can no longer be run."""
    incumbent = next(
        (obs for obs in challengers.observations_of(session, study) if obs.origin == TrialOrigin.BASELINE), None
    )
    return system_study_plan.is_infeasible(incumbent)
