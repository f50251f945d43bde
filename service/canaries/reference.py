"""What is normal for a recommendation: the runs it rests on, and its canaries since.

One that a retune kept, on the fingerprint it was measured on before, goes by what was normal before: else a decline could
hide in retunes that follow each other. Where a canary had found drift, the retune's own runs count: that was told.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.canaries import CanaryVerdict
from shardtune.db.queries import best, canaries, trials
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.canaries import CanaryRow
from shardtune.db.tables.studies import StudyRow
from shardtune.service.planning import study_snapshot
from shardtune.tuner.freshness import drift
from shardtune.tuner.freshness.drift import Reference

_RUNS = 9
"""A reference of fewer runs takes in the first canaries that were normal."""


@dataclass(frozen=True)
class Normal:
    """What a canary is held against."""

    known: Reference | None
    """None: it rests on fewer runs than make a reference."""
    lacking: int
    """Runs that make one with those there are."""
    earlier: list[float]
    """tokens_per_s_per_gpu of one worker's canaries since, in order."""


def normal(session: Session, row: TuningTargetRow, serving: RecommendationRow, worker_id: str | None = None) -> Normal:
    """What the recommendation did when it was measured, and a worker's canaries of it since."""
    known = canaries.of_case(session, row.project_id, row.target_key)
    line = _line(
        session, serving, {canary.recommendation_id for canary in known if canary.verdict == CanaryVerdict.DRIFT}
    )
    runs, earlier = list[float](), list[float]()
    for found in line:
        if len(runs) < drift.FEWEST:
            runs += _measured(session, found)
    names = {found.id for found in line}
    for canary in known:
        if (
            canary.recommendation_id not in names
            or canary.verdict != CanaryVerdict.NORMAL
            or not canary.tokens_per_s_per_gpu
        ):
            continue
        if len(runs) < _RUNS:
            runs += _speeds(session, canary)
        elif canary.worker_id == worker_id:
            earlier.append(canary.tokens_per_s_per_gpu)
    return Normal(drift.reference(runs), max(0, drift.FEWEST - len(runs)), earlier)


def _line(session: Session, serving: RecommendationRow, drifted: Collection[str]) -> list[RecommendationRow]:
    """What is served, after those it renewed on this fingerprint while none of their canaries found drift."""
    line, config = [serving], serving.answer.result.best.config
    for earlier in best.earlier(session, serving):
        if line[0].answer.renewed is None or earlier.id in drifted:
            break
        if earlier.answer.result.best.config == config:
            line.insert(0, earlier)
    return line


def _measured(session: Session, found: RecommendationRow) -> list[float]:
    """tokens_per_s_per_gpu of the runs that a recommendation rests on."""
    return speeds(session, found.study, found.answer.result.best.trial_number)


def _speeds(session: Session, canary: CanaryRow) -> list[float]:
    """A canary counts as its fastest run; one that had nothing to be held against, with all of them."""
    assert canary.tokens_per_s_per_gpu is not None
    system_study = canary.study.system_study
    if system_study is not None and system_study.repeat_below is None:
        return speeds(session, canary.study)
    return [canary.tokens_per_s_per_gpu]


def speeds(session: Session, study: StudyRow, trial_number: int = 0) -> list[float]:
    """tokens_per_s_per_gpu of a trial's runs."""
    trial = trials.by_number(session, study.id, trial_number)
    if trial is None:
        return []
    seen = study_snapshot.observation(trial, study.comparison_round)
    runs = (*seen.validation_runs, *([seen.measurement] if seen.measurement is not None else []))
    return [run.tokens_per_s_per_gpu for run in runs]
