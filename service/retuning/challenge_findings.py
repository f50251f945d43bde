"""What the study of a challenge found, once it has ended; and in words."""

import math

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import Speedup
from shardtune.api_schemas.trials.trial import TrialOrigin
from shardtune.db.tables.studies import StudyRow
from shardtune.service.planning import system_study_plan
from shardtune.service.retuning import challengers
from shardtune.tuner.verdict import challenge
from shardtune.tuner.verdict.challenge import Finding


def of(session: Session, study: StudyRow) -> Finding:
    """Of a complete challenge."""
    history = tuple(challengers.observed(session, study))
    promoted = study.result.final_comparison if study.result is not None else None
    first = None
    if study.result is not None and promoted is not None:
        first = challenge.first_ratio(history, study.result.baseline.trial_number, promoted.candidates[0])
    return challenge.finding(log_ratios(study), study.spec.budget.max_pairs, first)


def percent(speedup: Speedup) -> str:
    """`+12.3 % [8.1, 15.0]`."""
    low, high = speedup.ci95
    return f"{100 * (speedup.value - 1):+.1f} % [{100 * (low - 1):.1f}, {100 * (high - 1):.1f}]"


def seen(log_ratios: list[float]) -> str:
    """What the pairs were like."""
    middle = math.exp(sorted(log_ratios)[len(log_ratios) // 2]) if log_ratios else 1.0
    won = sum(ratio > 0 for ratio in log_ratios)
    return (
        f"the fastest challenger won {won} of {len(log_ratios)} pairs with the incumbent, "
        f"at {middle:.3f} times its speed in the middle"
    )


def log_ratios(study: StudyRow) -> list[float]:
    """log(challenger / incumbent) of each pair; empty where nobody came near."""
    promoted = study.result.final_comparison if study.result is not None else None
    return [math.log(ratio) for ratio in promoted.ratios] if promoted is not None else []


def has_fallen(session: Session, study: StudyRow) -> bool:
    """The incumbent cannot be run any longer."""
    incumbent = next((obs for obs in challengers.observed(session, study) if obs.origin == TrialOrigin.BASELINE), None)
    return system_study_plan.has_fallen(incumbent)
