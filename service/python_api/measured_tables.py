"""Rows and tables of measured configurations: trials, recommended configurations, projections to a target."""

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.recommendations.best import BestConfig
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Speedup, StudyResult
from shardtune.api_schemas.studies.targets import ProjectedConfig, StudyProjection
from shardtune.api_schemas.trials.trial import Rejection, RunPurpose, Trial
from shardtune.service.mcp import measured_rows
from shardtune.service.mcp.schemas.figures import GIB, SPEED, Figure, figure
from shardtune.service.mcp.schemas.study_answers import MeasuredConfig
from shardtune.service.python_api.rows import AnswerRow, RowTable, cells
from shardtune.service.wording import cluster_words, study_words
from shardtune.service.wording.targets import confirmation_words, projection_words

_BAND_95 = "95 % interval within the run"


def trial_row(trial: Trial, study_id: str) -> AnswerRow:
    """Return the table row of a trial: what its search run measured, what had been predicted, and the reason if it
    ended early."""
    predicted = trial.prediction
    return AnswerRow(
        cells(
            trial=trial.number,
            state=trial.state.value,
            configuration=trial.description,
            speed=_searched_speed(trial, study_id),
            memory=measured_rows.memory_figure(
                trial.peak_allocated_gib, trial.peak_reserved_gib, f"search run of trial {trial.number} of {study_id}"
            ),
            predicted_speed=None
            if predicted is None or predicted.tokens_per_s_per_gpu is None
            else figure(
                predicted.tokens_per_s_per_gpu,
                SPEED,
                "predicted",
                "predictor, before the trial",
                _ends(predicted.low_tokens_per_s_per_gpu, predicted.high_tokens_per_s_per_gpu),
            ),
            predicted_memory=None
            if predicted is None
            else figure(
                predicted.memory_gib,
                GIB,
                "predicted",
                "predictor, before the trial",
                (predicted.low_memory_gib, predicted.high_memory_gib),
            ),
            origin=trial.origin.value,
            reason=study_words.failure_line(trial) or study_words.pruning_note(trial) or None,
        ),
        trial.config,
    )


def configurations(result: StudyResult, study_id: str) -> RowTable:
    """Return the table of the configurations that a result names: the recommended one, the baseline and the
    candidate."""
    named = {"recommended": result.best, "baseline": result.baseline, "candidate": result.candidate}
    rows = [
        _measured_row(role, measured_rows.measured_config(contender, study_id), contender.config)
        for role, contender in named.items()
        if contender is not None
    ]
    return RowTable("configurations", "Measured configurations of the answer", rows)


def best_so_far(study: Study) -> RowTable:
    """Return the table of the fastest configuration so far of a study without a result; no run has confirmed this
    configuration."""
    contender = study.best_so_far
    rows = (
        []
        if contender is None
        else [
            _measured_row("fastest so far", measured_rows.measured_config(contender, study.study_id), contender.config)
        ]
    )
    return RowTable("configurations", "Fastest configuration so far; nothing has confirmed it", rows)


def known_configurations(known: BestConfig) -> RowTable:
    """Return the table of a known configuration and its baseline."""
    rows = [
        _measured_row(role, measured_rows.measured_config(contender, known.study_id), contender.config)
        for role, contender in (("recommended", known.best), ("baseline", known.baseline))
    ]
    return RowTable("configurations", "Measured configurations of the answer", rows)


def speedup(compared: Speedup | None, study_id: str) -> RowTable:
    """Return the table of a measured speed-up over the baseline; it has no rows if nothing was compared."""
    value = measured_rows.speedup_figure(compared, study_id)
    rows = [] if value is None else [AnswerRow(cells(comparison="candidate over baseline", speedup=value))]
    return RowTable("speedup", "Speed-up in paired runs", rows)


def rejected_row(rejection: Rejection) -> AnswerRow:
    """Return the row of a configuration that was predicted not to fit."""
    source = "least memory that one rank would need, with 99 % probability"
    if rejection.memory_of == "host":
        source = "memory of the host that all its ranks would need"
    return AnswerRow(
        cells(
            configuration=rejection.config.describe(),
            needed=figure(rejection.needed_gib, GIB, "predicted", source),
            available_gib=rejection.available_gib,
            reason=rejection.reason,
        ),
        rejection.config,
    )


def projected(projection: StudyProjection | None) -> RowTable:
    """Return the table of the configurations that a study projects to its target (a larger cluster); none of their
    figures is measured."""
    if projection is None:
        return RowTable("target", "", [])
    source = f"projection from measurements on {projection_words.measured_gpus(projection)}"
    status = confirmation_words.status(projection)
    rows = [_projected_row(config, source) for config in (projection.best, *projection.runners_up)]
    return RowTable("target", f"On {cluster_words.cluster(projection.cluster)}: {status}", rows)


def _projected_row(config: ProjectedConfig, source: str) -> AnswerRow:
    return AnswerRow(
        cells(
            trial=config.trial_number,
            configuration=config.description + (" (may not fit)" if config.may_not_fit else ""),
            speed=_banded(config.tokens_per_s_per_gpu, SPEED, source),
            memory=_banded(config.memory_gib, GIB, source),
        ),
        config.config,
    )


def _banded(band: Band, unit: str, source: str) -> Figure:
    return figure(band.expected, unit, "projected", source, (band.low, band.high))


def _measured_row(role: str, row: MeasuredConfig, config: TrialConfig) -> AnswerRow:
    return AnswerRow(
        cells(
            role=role,
            configuration=row.description,
            speed=row.speed,
            memory=row.memory,
            trial=row.trial_number,
            runs=row.runs,
        ),
        config,
    )


def _searched_speed(trial: Trial, study_id: str) -> Figure | None:
    if trial.tokens_per_s_per_gpu is None:
        return None
    run = next((run.measurement for run in trial.runs if run.purpose is RunPurpose.SEARCH and run.measurement), None)
    source = f"search run of trial {trial.number} of {study_id}"
    ends = None if run is None else run.speed_range
    return figure(trial.tokens_per_s_per_gpu, SPEED, "measured", source, ends, _BAND_95)


def _ends(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)
