"""Reference speed of a recommendation, computed from the runs that led to it and from its later canaries.

A recommendation that a retune has kept on the same fingerprint keeps its earlier reference.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.canaries import CanaryVerdict
from shardtune.db.queries import canaries, trials
from shardtune.db.queries.recommendations import history
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.canaries import CanaryRow
from shardtune.db.tables.studies import StudyRow
from shardtune.service.planning import study_snapshot
from shardtune.tuner.freshness import drift
from shardtune.tuner.freshness.drift import ExpectedSpeed
from shardtune.tuner.verdict import short_steps

_REFERENCE_RUNS = 9
"""Number of runs wanted for a reference speed. If a recommendation has fewer, its first normal canaries (repeated
runs of its configuration) count as well.
"""


@dataclass(frozen=True)
class CanaryReference:
    """Reference speed of a recommendation, with which canaries (repeated runs of its configuration) are compared."""

    reference: ExpectedSpeed | None
    """Reference speed of a recommendation; None if too few runs were measured."""
    missing_runs: int
    """Number of further runs that must be measured before a reference speed exists."""
    worker_speeds: list[float]
    """Speeds in tokens per second of one rank, in order of time. One worker measured them in canaries (repeated runs
    of the recommended configuration) that do not count towards the reference speed.
    """


def reference_of(
    session: Session, row: TuningTargetRow, recommended: RecommendationRow, worker_id: str | None = None
) -> CanaryReference:
    """Reference speed of a recommendation, and the speeds that one worker measured in later canaries (repeated runs
    of the recommended configuration).
    """
    target_canaries = canaries.of_target(session, row.project_id, row.target_key)
    lineage = _lineage(
        session,
        recommended,
        {canary.recommendation_id for canary in target_canaries if canary.verdict == CanaryVerdict.DRIFT},
    )
    # Short steps and whole steps of one configuration differ by the error of the extension, which is no drift.
    is_extended = _canary_is_extended(recommended)
    # The oldest recommendation of the lineage comes first, so its runs fill the reference before later ones.
    runs, earlier = list[float](), list[float]()
    for recommendation in lineage:
        if len(runs) < drift.FEWEST:
            runs += _recommendation_speeds(session, recommendation, is_extended)
    lineage_ids = {recommendation.id for recommendation in lineage}
    for canary in target_canaries:
        if (
            canary.recommendation_id not in lineage_ids
            or canary.verdict != CanaryVerdict.NORMAL
            or not canary.tokens_per_s_per_gpu
            or not trial_speeds(session, canary.study, is_extended=is_extended)
        ):
            continue
        if len(runs) < _REFERENCE_RUNS:
            runs += _canary_speeds(session, canary)
        elif canary.worker_id == worker_id:
            earlier.append(canary.tokens_per_s_per_gpu)
    return CanaryReference(drift.expected_speed(runs), max(0, drift.FEWEST - len(runs)), earlier)


def _lineage(session: Session, recommended: RecommendationRow, drifted: Collection[str]) -> list[RecommendationRow]:
    """Return a recommendation, preceded by the earlier recommendations of the same configuration that it has renewed,
    on the same fingerprint (hardware and software versions), oldest first.
    """
    # Without the earlier ones, a slow decline could hide in retunes that follow each other. After drift was announced,
    # the retune's own runs are the new reference.
    lineage, config = [recommended], recommended.answer.result.best.config
    for earlier in history.earlier_recommendations(session, recommended):
        if lineage[0].answer.renewed is None or earlier.id in drifted:
            break
        if earlier.answer.result.best.config == config:
            lineage.insert(0, earlier)
    return lineage


def _canary_is_extended(recommended: RecommendationRow) -> bool:
    """Whether the next canary (repeated run of a recommended configuration) times short steps, which have fewer micro
    batches, and computes the time of a whole step from them.
    """
    samples, answer = recommended.study.parity_samples, recommended.answer
    if samples is None:
        return False
    micro_batches = short_steps.of_run(samples, answer.result.best.config, answer.workload, answer.cluster)
    return micro_batches.accumulations is not None


def _recommendation_speeds(session: Session, recommendation: RecommendationRow, is_extended: bool) -> list[float]:
    """Speeds of the runs that led to a recommendation, in tokens per second of one rank."""
    result = recommendation.answer.result
    # A study that was extended may have compared again, on a machine that was too busy, without replacing its answer.
    comparison = result.final_comparison.number if result.final_comparison is not None else 0
    number = result.best.trial_number
    return trial_speeds(session, recommendation.study, number, is_extended=is_extended, comparison=comparison)


def _canary_speeds(session: Session, canary: CanaryRow) -> list[float]:
    """Speeds of a canary (repeated run of a recommended configuration) that count: all its runs if they contribute to
    the reference speed, else its fastest run.
    """
    assert canary.tokens_per_s_per_gpu is not None
    system_study = canary.study.system_study
    if system_study is not None and system_study.repeat_below is None:
        return trial_speeds(session, canary.study)
    return [canary.tokens_per_s_per_gpu]


def trial_speeds(
    session: Session, study: StudyRow, trial_number: int = 0, *, is_extended: bool | None = None, comparison: int = 0
) -> list[float]:
    """Speeds of the runs of a trial, in tokens per second of one rank.

    If `is_extended` is True, only runs count that timed short steps (fewer micro batches) and computed the whole step
    time from them. If it is False, only runs count that timed whole steps; if None, all runs count. `comparison`: number
    of the final comparison whose validation runs count; 0 for the study's newest one.
    """
    trial = trials.by_number(session, study.id, trial_number)
    if trial is None:
        return []
    observed = study_snapshot.observation(trial, comparison or study.comparison_round)
    runs = (*observed.validation_runs, *([observed.measurement] if observed.measurement is not None else []))
    return [run.tokens_per_s_per_gpu for run in runs if is_extended in (None, run.is_extended)]
