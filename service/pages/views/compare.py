"""Several configurations side by side, knob by knob."""

from dataclasses import dataclass
from statistics import median
from typing import Any

from sqlalchemy.orm import Session

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies import Study
from shardtune.api_schemas.trials import RunPurpose
from shardtune.db.queries import studies, trials
from shardtune.service.pages.figures import memory, percent, rate, ratio, seconds
from shardtune.service.pages.views import best, words
from shardtune.service.wording.knob_words import knob_name
from shardtune.service.wording.told_apart import knob_value
from shardtune.tuner.search.space.flat import flatten

MOST = 4


@dataclass(frozen=True)
class Column:
    """One configuration."""

    title: str
    href: str
    description: str


@dataclass(frozen=True)
class ComparedLine:
    """One property of all of them."""

    name: str
    values: tuple[str, ...]
    differs: bool


@dataclass(frozen=True)
class Comparison:
    """All of the page."""

    columns: tuple[Column, ...]
    figures: tuple[ComparedLine, ...]
    subjects: tuple[ComparedLine, ...]
    knobs: tuple[ComparedLine, ...]
    missing: tuple[str, ...]
    """What was asked for and is not there, or has no figures yet."""


@dataclass(frozen=True)
class _Side:
    study: Study
    number: int
    config: TrialConfig
    tokens: float | None
    """Of its search run."""
    confirmed: float | None
    """Median of its confirmation runs."""
    memory: float | None
    step_s: float | None
    mfu: float | None
    speedup: str


def comparison(session: Session, project_id: str | None, picks: list[str]) -> Comparison:
    """`picks` are study ids (their answer) or `study-id:number` (one trial)."""
    sides, missing = [], []
    for pick in dict.fromkeys(picks[:MOST]):
        side = _side(session, project_id, pick)
        if side is None:
            missing.append(pick)
        else:
            sides.append(side)
    return Comparison(
        columns=tuple(_column(side) for side in sides),
        figures=_figures(sides),
        subjects=_subjects(sides),
        knobs=_knobs([flatten(side.config) for side in sides]),
        missing=tuple(missing),
    )


def _side(session: Session, project_id: str | None, pick: str) -> _Side | None:
    name, _, number = pick.partition(":")
    row = studies.get(session, name)
    if row is None or project_id not in (None, row.project_id):
        return None
    study = best.read_models(session, [row])[0]
    answer = best.answer(study)
    wanted = int(number) if number.isdecimal() and len(number) < 10 else answer.trial_number if answer else None
    trial = trials.by_number(session, name, wanted) if wanted is not None else None
    if trial is None:
        return None
    measured = next((run.measurement for run in trial.runs if run.purpose == RunPurpose.SEARCH), None)
    again = [
        run.measurement.tokens_per_s_per_gpu
        for run in trial.runs
        if run.purpose == RunPurpose.CONFIRM and run.measurement
    ]
    return _Side(
        study=study,
        number=trial.number,
        config=trial.config,
        tokens=measured.tokens_per_s_per_gpu if measured else None,
        confirmed=median(again) if again else None,
        memory=_peak(measured.memory.peak_reserved_gib, measured.memory.peak_allocated_gib) if measured else None,
        step_s=measured.step_time_s if measured else None,
        mfu=measured.mfu if measured else None,
        speedup=_speedup(study, trial.number),
    )


def _speedup(study: Study, number: int) -> str:
    """Of the challenger, confirmed or not, over the baseline."""
    result = study.result
    challenger = (result.candidate or result.best) if result else None
    if result is None or result.speedup is None or challenger is None or challenger.trial_number != number:
        return "is the baseline" if result and result.baseline.trial_number == number else "–"
    low, high = result.speedup.ci95
    return f"{ratio(result.speedup.value)} ({low:.2f} to {high:.2f})"


def _peak(reserved: float | None, allocated: float | None) -> float | None:
    return allocated if reserved is None else reserved


def _column(side: _Side) -> Column:
    href = f"/studies/{side.study.study_id}/trials/{side.number}"
    return Column(f"{side.study.spec.model.name}, trial {side.number}", href, side.config.describe())


def _figures(sides: list[_Side]) -> tuple[ComparedLine, ...]:
    first = sides[0].tokens if sides else None
    relative = [f"{s.tokens / first:.2f}×" if s.tokens and first else "–" for s in sides]
    return (
        _line("tokens/s/GPU, search run", [rate(s.tokens) for s in sides]),
        *([_line("against the first (search runs)", relative)] if _is_one_subject(sides) else []),
        _line("tokens/s/GPU, median of confirmation runs", [rate(s.confirmed) for s in sides]),
        _line("speed-up over its study's baseline, in pairs", [s.speedup for s in sides]),
        _line("peak memory", [memory(s.memory) for s in sides]),
        _line("step time (search run)", [seconds(s.step_s) for s in sides]),
        _line("MFU", [percent(s.mfu, 1) for s in sides]),
    )


def _subjects(sides: list[_Side]) -> tuple[ComparedLine, ...]:
    specs = [side.study.spec for side in sides]
    return (
        _line("model", [spec.model.name for spec in specs]),
        _line("cluster", [words.told_apart(side.study.cluster) for side in sides]),
        _line("sequence length", [f"{spec.workload.sequence_length:,}" for spec in specs]),
        _line("global batch", [f"{spec.workload.global_batch:,}" for spec in specs]),
        _line("precision", [spec.workload.recipe.name for spec in specs]),
        _line("study", [side.study.study_id for side in sides]),
    )


def _is_one_subject(sides: list[_Side]) -> bool:
    """Speeds of different models, workloads or clusters are no ratio of anything."""
    return len({repr((s.study.spec.model, s.study.spec.workload, s.study.cluster)) for s in sides}) < 2


def _knobs(tables: list[dict[str, Any]]) -> tuple[ComparedLine, ...]:
    names = list(dict.fromkeys(name for table in tables for name in table))
    lines = [
        ComparedLine(
            knob_name(name),
            tuple(knob_value(name, table[name]) if name in table else "n/a" for table in tables),
            # What only one of the backends has says nothing that the backend's name does not.
            len({repr(table[name]) for table in tables if name in table}) > 1,
        )
        for name in names
    ]
    return tuple(sorted(lines, key=lambda line: not line.differs))


def _line(name: str, values: list[str]) -> ComparedLine:
    return ComparedLine(name, tuple(values), len(set(values)) > 1)
