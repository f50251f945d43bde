"""Convert database rows of studies and trials into the API's models."""

from collections.abc import Mapping

from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.predictions import TrialPrediction
from shardtune.api_schemas.trials.trial import Attempt, Run, RunPurpose, Trial
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import AttemptRow, RunRow, TrialRow
from shardtune.tuner.prediction import learning
from shardtune.tuner.verdict import final_comparison
from shardtune.tuner.verdict.whole_steps import WHOLE_STEP_BLOCK

_OF_COMPARISONS = (RunPurpose.VALIDATION, RunPurpose.RECIPE)
"""Purposes of the runs that belong to one final comparison (paired runs that decide)."""


def study_from_row(row: StudyRow, trials: Mapping[str, int], rejected: int) -> Study:
    """Convert a study's row into the API's model. The caller passes the numbers of trials and rejections, which it
    queries for many studies at once.
    """
    return Study(
        study_id=row.id,
        project_id=row.project_id,
        state=row.state,
        phase=row.phase,
        spec=row.spec,
        cluster=row.cluster,
        model_summary=row.model_summary,
        fingerprint=row.fingerprint.value if row.fingerprint else None,
        trials=dict(trials),
        rejected=rejected,
        gpu_seconds=row.gpu_seconds,
        final_comparison=row.comparison_round,
        final_comparison_runs=_final_comparison_runs(row),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        deleted_at=row.deleted_at,
        best_so_far=row.best_so_far,
        result=row.result,
        reason=row.reason,
        reason_code=_known_code(row.reason_code),
        reason_details=row.reason_details or "",
        system_study=row.system_study,
        warnings=tuple(row.notes),
    )


def _known_code(code: str | None) -> StudyReasonCode | None:
    """Return a stored reason code. None if a newer release stored a code that this release does not know."""
    return StudyReasonCode(code) if code in set(StudyReasonCode) else None


def _final_comparison_runs(row: StudyRow) -> int | None:
    finalists, pairs = row.final_comparison, row.spec.budget.max_pairs
    # An upper limit: the comparison may end earlier.
    return (
        final_comparison.max_runs(len(finalists.rivals), pairs, len(finalists.defaults))
        if finalists is not None
        else None
    )


def trial_from_row(row: TrialRow) -> Trial:
    """Convert a trial and its runs into the API's model. The figures given for the trial itself are those of its
    search run.
    """
    # Validation runs repeat the configuration; the search run is the one that every trial has.
    searched = next((run.measurement for run in row.runs if run.purpose == RunPurpose.SEARCH), None)
    return Trial(
        number=row.number,
        state=row.state,
        origin=row.origin,
        config=row.config,
        description=row.config.describe(),
        failure=row.failure,
        tokens_per_s_per_gpu=searched.tokens_per_s_per_gpu if searched else None,
        peak_allocated_gib=searched.memory.peak_allocated_gib if searched else None,
        peak_reserved_gib=searched.memory.peak_reserved_gib if searched else None,
        prediction=row.prediction,
        reason=row.reason,
        **_prediction_ratios(row.prediction, searched),
        runs=tuple(_run_from_row(run) for run in row.runs),
    )


def _prediction_ratios(predicted: TrialPrediction | None, measured: Measurement | None) -> dict[str, float]:
    """Predicted memory and speed of a trial, each divided by the measured value, as far as both values are known."""
    if predicted is None or measured is None:
        return {}
    ratios: dict[str, float] = {}
    # What the device reported in use where it did, else the peak of tensors: what predictions are compared with.
    peak = learning.peak_gib(measured.memory)
    if peak:
        ratios["predicted_over_measured_memory"] = predicted.memory_gib / peak
    if predicted.tokens_per_s_per_gpu is not None and measured.tokens_per_s_per_gpu > 0:
        ratios["predicted_over_measured_speed"] = predicted.tokens_per_s_per_gpu / measured.tokens_per_s_per_gpu
    return ratios


def _run_from_row(row: RunRow) -> Run:
    is_whole_step = row.comparison_block == WHOLE_STEP_BLOCK
    return Run(
        run_id=row.id,
        purpose=row.purpose,
        final_comparison=row.comparison_round if row.purpose in _OF_COMPARISONS else None,
        comparison_block=None if is_whole_step else row.comparison_block,
        recipe=None if row.recipe is None else row.recipe.name,
        is_whole_step=is_whole_step,
        state=row.state,
        measurement=row.measurement,
        resume_check=row.resume_check,
        rehearsal=row.rehearsal,
        failure=row.failure,
        log_tail=row.log_tail,
        progress=row.progress,
        attempts=tuple(_attempt_from_row(attempt) for attempt in row.attempts),
    )


def _attempt_from_row(row: AttemptRow) -> Attempt:
    return Attempt(
        attempt=row.attempt,
        worker=row.worker.name,
        started_at=row.started_at,
        finished_at=row.finished_at,
        end=row.end,
        failure_message=row.failure.message if row.failure is not None else None,
        gpu_seconds=row.gpu_seconds,
    )
