"""What is normal for a recommendation: the runs it rests on, and its canaries since."""

from sqlalchemy.orm import Session

from db import canaries, trials
from db.best_rows import BestRow, RecommendationRow
from service import study_view
from tuner import drift
from tuner.drift import Reference

_RUNS = 9
"""A reference of fewer runs takes in the first canaries that were normal."""


def normal(
    session: Session, row: BestRow, serving: RecommendationRow, worker_id: str
) -> tuple[Reference | None, list[float]]:
    """What the recommendation did when it was measured, and this worker's canaries of it since."""
    measured = _measured(session, serving)
    since = [
        canary
        for canary in canaries.of_case(session, row.project_id, row.study_key)
        if canary.recommendation_id == serving.id and canary.verdict == "normal" and canary.tokens_per_s_per_gpu
    ]
    taken = since[: max(0, _RUNS - len(measured))]
    known = drift.reference([*measured, *(float(canary.tokens_per_s_per_gpu or 0) for canary in taken)])
    later = [canary for canary in since if canary not in taken and canary.worker_id == worker_id]
    return known, [float(canary.tokens_per_s_per_gpu or 0) for canary in later]


def _measured(session: Session, serving: RecommendationRow) -> list[float]:
    """tokens_per_s_per_gpu of the runs that the recommendation rests on."""
    study = serving.study
    trial = trials.by_number(session, study.id, serving.answer.result.best.trial_number)
    if trial is None:
        return []
    seen = study_view.observation(trial, study.match_round)
    runs = (*seen.confirmations, *([seen.measurement] if seen.measurement is not None else []))
    return [run.tokens_per_s_per_gpu for run in runs]
