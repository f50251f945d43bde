"""Configurations side by side, of one study or of several, with what was measured of each."""

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
from shardtune.api_schemas.studies.study import Speedup, StudyResult
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import best, retunes, studies, trials
from shardtune.db.tables.studies import StudyRow, TrialRow
from shardtune.service.process.context import Context
from shardtune.tuner.search.space.flat import flatten

_TARGET_KEY = re.compile(r"[0-9a-f]{32}")
_MOST_DIGITS = 9


def compare(context: Context, picks: Sequence[str]) -> Comparison:
    """Each pick is a study (its answer), `study:number` (a trial), a retune (its study's answer) or a target key (what is served)."""
    found, missing = [], []
    with context.db.read() as session:
        for pick in dict.fromkeys(picks[:MOST_COMPARED]):
            side = _side(context, session, pick)
            if side is None:
                missing.append(pick)
            else:
                found.append(side)
    subjects = {(side.model, side.workload.canonical_json(), side.cluster.canonical_json()) for side in found}
    return Comparison(
        configs=tuple(found),
        currency=context.settings.currency,
        differences=_differences(found),
        is_one_subject=len(subjects) < 2,
        not_found=tuple(missing),
    )


def _side(context: Context, session: Session, pick: str) -> ComparedConfig | None:
    name, _, number = pick.partition(":")
    study, answer = _meant(context, session, name)
    if study is None or not context.principal.sees(study.project_id):
        return None
    wanted = int(number) if number.isdecimal() and len(number) <= _MOST_DIGITS else answer
    # One page of one, because that is read with its runs and attempts at once.
    rows = trials.page(session, study.id, (), wanted - 1, 1) if wanted is not None else ()
    return next((_compared(context, study, row) for row in rows if row.number == wanted), None)


def _meant(context: Context, session: Session, name: str) -> tuple[StudyRow | None, int | None]:
    """The study of that name, and the trial that is its answer."""
    if _TARGET_KEY.fullmatch(name):
        case = best.current(session, context.principal.home, name)
        served = case.serving if case is not None else None
        return (served.study, served.answer.result.best.trial_number) if served is not None else (None, None)
    retune = retunes.get(session, name)
    ids = (retune.search_study_id, retune.challenge_study_id) if retune is not None else (name,)
    study = next((row for study_id in ids if study_id and (row := studies.get(session, study_id))), None)
    if study is None:
        return None, None
    answer = study.result.best if study.result is not None else study.best_so_far
    return study, answer.trial_number if answer is not None else None


def _compared(context: Context, study: StudyRow, row: TrialRow) -> ComparedConfig:
    price = context.settings.price_per_gpu_hour
    searched = next((run.measurement for run in row.runs if run.purpose == RunPurpose.SEARCH), None)
    again = [
        run.measurement.tokens_per_s_per_gpu
        for run in row.runs
        if run.purpose == RunPurpose.VALIDATION and run.comparison_round == study.comparison_round and run.measurement
    ]
    spent = sum(attempt.gpu_seconds or 0.0 for run in row.runs for attempt in run.attempts)
    measured = searched or next((run.measurement for run in row.runs if run.measurement), None)
    return ComparedConfig(
        study_id=study.id,
        trial_number=row.number,
        model=study.spec.model.name,
        workload=study.spec.workload,
        cluster=study.cluster,
        config=row.config,
        description=row.config.describe(),
        search=_of_one(searched) if searched else None,
        fresh=_of_many(again) if again else None,
        speedup=_speedup(study.result, row.number),
        is_baseline=study.result is not None and study.result.baseline.trial_number == row.number,
        peak_allocated_gib=measured.memory.peak_allocated_gib if measured else None,
        peak_reserved_gib=measured.memory.peak_reserved_gib if measured else None,
        step_time_s=searched.step_time_s if searched else None,
        mfu=searched.mfu if searched else None,
        gpu_seconds=spent,
        price=price_of(spent, price),
        study_gpu_seconds=study.gpu_seconds,
        study_price=price_of(study.gpu_seconds, price),
    )


def _of_one(run: Measurement) -> MeasuredSpeed:
    """The interval of the mean step is symmetric in time, not in speed."""
    speed, step, half = run.tokens_per_s_per_gpu, run.step_time_s, run.step_time_half_width_s
    # A run so restless that its interval reaches down to no time at all says nothing about how fast it may be.
    high = speed * step / (step - half) if half < step else speed
    return MeasuredSpeed(tokens_per_s_per_gpu=speed, low=speed * step / (step + half), high=high, runs=1)


def _of_many(speeds: Sequence[float]) -> MeasuredSpeed:
    return MeasuredSpeed(tokens_per_s_per_gpu=median(speeds), low=min(speeds), high=max(speeds), runs=len(speeds))


def _speedup(result: StudyResult | None, number: int) -> Speedup | None:
    """Of the challenger, confirmed or not."""
    challenger = (result.candidate or result.best) if result is not None else None
    return result.speedup if result and challenger and challenger.trial_number == number else None


def _differences(sides: Sequence[ComparedConfig]) -> tuple[KnobDifference, ...]:
    tables = [flatten(side.config) for side in sides]
    names = dict.fromkeys(name for table in tables for name in table)
    return tuple(
        KnobDifference(knob=name, values=tuple(table.get(name) for table in tables))
        for name in names
        # What only one of the backends has says nothing that the backend's name does not.
        if len({repr(table[name]) for table in tables if name in table}) > 1
    )
