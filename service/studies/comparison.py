"""Compare configurations of one or several studies by their measurements."""

import re
from collections.abc import Sequence
from statistics import median

from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.costs import price_of
from shardtune.api_schemas.studies.comparisons import (
    MOST_COMPARED,
    ComparedConfig,
    Comparison,
    KnobDifference,
    MeasuredSpeed,
)
from shardtune.api_schemas.studies.study_result import Speedup, StudyResult
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import best, retunes, studies, trials
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import TrialRow
from shardtune.service.process.context import Context
from shardtune.tuner.search.space.flat import differing_knobs

_TARGET_KEY = re.compile(r"[0-9a-f]{32}")
_MOST_DIGITS = 9


def compare(context: Context, picks: Sequence[str]) -> Comparison:
    """Compare the picked configurations. A pick is a study (its result), `study:number` (a trial), a retune (the
    result of its study), or a target key (its recommendation).
    """
    configs, unknown_picks = [], []
    with context.db.read() as session:
        for pick in dict.fromkeys(picks[:MOST_COMPARED]):
            side = _compared_config(context, session, pick)
            if side is None:
                unknown_picks.append(pick)
            else:
                configs.append(side)
    subjects = {(side.model, side.workload.canonical_json(), side.cluster.canonical_json()) for side in configs}
    return Comparison(
        configs=tuple(configs),
        currency=context.settings.currency,
        differences=_differences(configs),
        is_one_subject=len(subjects) < 2,
        not_found=tuple(unknown_picks),
    )


def _compared_config(context: Context, session: Session, pick: str) -> ComparedConfig | None:
    name, _, number = pick.partition(":")
    study, answer = _resolve_pick(context, session, name)
    if study is None or not context.principal.sees(study.project_id):
        return None
    trial_number = int(number) if number.isdecimal() and len(number) <= _MOST_DIGITS else answer
    # Read as a page of one row, because a page loads runs and attempts with it.
    rows = trials.page(session, study.id, (), trial_number - 1, 1) if trial_number is not None else ()
    return next((_config_view(context, study, row) for row in rows if row.number == trial_number), None)


def _resolve_pick(context: Context, session: Session, name: str) -> tuple[StudyRow | None, int | None]:
    """Study that a pick names, and the number of the trial that is this study's result."""
    if _TARGET_KEY.fullmatch(name):
        target = best.current_target(session, context.principal.home, name)
        recommended = target.recommended if target is not None else None
        return (
            (recommended.study, recommended.answer.result.best.trial_number)
            if recommended is not None
            else (None, None)
        )
    retune = retunes.get(session, name)
    ids = (retune.search_study_id, retune.challenge_study_id) if retune is not None else (name,)
    study = next((row for study_id in ids if study_id and (row := studies.get(session, study_id))), None)
    if study is None:
        return None, None
    answer = study.result.best if study.result is not None else study.best_so_far
    return study, answer.trial_number if answer is not None else None


def _config_view(context: Context, study: StudyRow, row: TrialRow) -> ComparedConfig:
    price = context.settings.price_per_gpu_hour
    search_measurement = next((run.measurement for run in row.runs if run.purpose == RunPurpose.SEARCH), None)
    # The result of a study that was extended may be that of an earlier final comparison than the newest.
    compared = study.result.final_comparison if study.result is not None else None
    number = compared.number if compared is not None and compared.number else study.comparison_round
    validation_speeds = [
        run.measurement.tokens_per_s_per_gpu
        for run in row.runs
        if run.purpose == RunPurpose.VALIDATION and run.comparison_round == number and run.measurement
    ]
    spent = sum(attempt.gpu_seconds or 0.0 for run in row.runs for attempt in run.attempts)
    measured = search_measurement or next((run.measurement for run in row.runs if run.measurement), None)
    return ComparedConfig(
        study_id=study.id,
        trial_number=row.number,
        model=study.spec.model.name,
        workload=study.spec.workload,
        cluster=study.cluster,
        config=row.config,
        description=row.config.describe(),
        search=_speed_of_run(search_measurement) if search_measurement else None,
        validation=_speed_of_runs(validation_speeds) if validation_speeds else None,
        speedup=_speedup(study.result, row.number),
        is_baseline=study.result is not None and study.result.baseline.trial_number == row.number,
        peak_allocated_gib=measured.memory.peak_allocated_gib if measured else None,
        peak_reserved_gib=measured.memory.peak_reserved_gib if measured else None,
        step_time_s=search_measurement.step_time_s if search_measurement else None,
        mfu=search_measurement.mfu if search_measurement else None,
        gpu_seconds=spent,
        price=price_of(spent, price),
        study_gpu_seconds=study.gpu_seconds,
        study_price=price_of(study.gpu_seconds, price),
    )


def _speed_of_run(run: Measurement) -> MeasuredSpeed:
    """Speed that a single run measured, with the interval of the run's mean step time."""
    low, high = run.speed_range
    return MeasuredSpeed(tokens_per_s_per_gpu=run.tokens_per_s_per_gpu, low=low, high=high, runs=1)


def _speed_of_runs(speeds: Sequence[float]) -> MeasuredSpeed:
    return MeasuredSpeed(tokens_per_s_per_gpu=median(speeds), low=min(speeds), high=max(speeds), runs=len(speeds))


def _speedup(result: StudyResult | None, number: int) -> Speedup | None:
    """Speed-up of a trial over the baseline, if the trial is the challenger of the final comparison (paired runs that
    decide); it may be confirmed or not.
    """
    challenger = (result.candidate or result.best) if result is not None else None
    return result.speedup if result and challenger and challenger.trial_number == number else None


def _differences(sides: Sequence[ComparedConfig]) -> tuple[KnobDifference, ...]:
    knobs = differing_knobs([side.config for side in sides])
    return tuple(KnobDifference(knob=name, values=values) for name, values in knobs.items())
