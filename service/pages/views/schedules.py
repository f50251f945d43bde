"""Schedules and retunes: when each runs next, what came of the last ticks, and what each retune cost and saves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.orm import Session

from shardtune.api_schemas import times
from shardtune.api_schemas.retuning.retunes import Retune, RetuneCause, RetuneOutcome, RetuneState
from shardtune.api_schemas.retuning.schedules import Schedule, ScheduleSpec, Trigger
from shardtune.db.queries import best, schedules
from shardtune.db.tables.best import TuningTargetRow
from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.validation_errors import field_error
from shardtune.service.pages.views import words
from shardtune.service.wording import cluster_words, retune_words

_TONES = {
    RetuneOutcome.KEPT: "good",
    RetuneOutcome.REPLACED: "good",
    RetuneOutcome.INCONCLUSIVE: "warn",
    RetuneOutcome.FAILED: "bad",
    RetuneOutcome.SKIPPED: "quiet",
}
_LONGEST = 400
_MOST_TICKS = 5


@dataclass(frozen=True)
class ShownTarget:
    """A recommendation by what it is for."""

    model: str
    cluster: str
    workload: str


@dataclass(frozen=True)
class Ticked:
    """A time at which a schedule asked for retunes."""

    at: datetime
    words: str


@dataclass(frozen=True)
class ScheduleCard:
    """One schedule."""

    schedule: Schedule
    when: str
    next_run: str
    """Empty where it has no times."""
    ticks: tuple[Ticked, ...]
    must_wait: bool
    """For a window: what is asked for by hand now starts in it."""
    cases: str
    limits: str


@dataclass(frozen=True)
class RetuneLine:
    """One retune."""

    retune: Retune
    case: ShownTarget | None
    """None: its recommendation is gone."""
    cause: str
    schedule: str
    """Name of the schedule that asked for it; empty: none, or it is gone."""
    tone: str
    outcome: str
    reason: str


class ScheduleForm(BaseModel):
    """Every field as its text, so that what was typed comes back beside its error."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(default="", max_length=_LONGEST)
    trigger: str = "cron"
    cron: str = Field(default="0 3 * * 0", max_length=_LONGEST)
    timezone: str = Field(default="UTC", max_length=_LONGEST)
    cases: str = ""
    """Empty: all; `model:NAME`; `key:STUDY_KEY`."""
    windows: str = Field(default="", max_length=_LONGEST)
    overlap: str = "skip"
    catch_up: str = "one"
    planned_gpu_hours: str = Field(default="", max_length=40)
    likely_gain: str = Field(default="", max_length=40)
    """Per cent."""
    max_gpu_seconds: str = Field(default="", max_length=40)


class ScheduleFormErrors(Exception):
    """What the form says cannot be used."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = tuple(errors)


def spec_of(form: ScheduleForm) -> ScheduleSpec:
    """The schedule the form means.

    Raises:
        ScheduleFormErrors: one entry per field.
    """
    kind, _, named = form.cases.partition(":")
    values: dict[str, Any] = {
        "name": form.name.strip(),
        "trigger": form.trigger,
        # A field that its trigger does not use is left as it was typed, and out of the schedule.
        "cron": form.cron.strip() or None if form.trigger in ("cron", "drift") else None,
        "timezone": form.timezone.strip() or "UTC",
        "cases": {"target_keys": [named] if kind == "key" else [], "model": named if kind == "model" else None},
        "windows": [part.strip() for part in form.windows.split(",") if part.strip()],
        "overlap": form.overlap,
        "catch_up": form.catch_up,
        "planned_gpu_hours": _number(form.planned_gpu_hours.strip()),
        "likely_gain": _share(form.likely_gain.strip()),
        "max_gpu_seconds": _number(form.max_gpu_seconds.strip()),
    }
    try:
        return ScheduleSpec.model_validate(values)
    except ValidationError as error:
        raise ScheduleFormErrors([field_error(item) for item in error.errors()]) from None


def cards(found: Sequence[Schedule], newest: Sequence[Retune], now: datetime) -> tuple[ScheduleCard, ...]:
    """Schedules as the page shows them; `newest`: retunes, by which schedules without times show that they have run."""
    return tuple(
        ScheduleCard(
            schedule=one,
            when=retune_words.when(one),
            next_run=retune_words.next_run(one, now) if one.next_tick_at is not None else "",
            ticks=_ticks(one, newest),
            must_wait=not times.is_open(one.windows, one.timezone, now),
            cases=_cases(one),
            limits=_limits(one),
        )
        for one in found
    )


def lines(session: Session, found: Sequence[Retune], names: Mapping[str, str]) -> tuple[RetuneLine, ...]:
    """Retunes as the page shows them; `names` of schedules by id."""
    served = best.served_of(session, {(one.project_id, one.target_key) for one in found})
    return tuple(
        RetuneLine(
            retune=one,
            case=_case(served.get((one.project_id, one.target_key))),
            cause=retune_words.cause(one.cause, one.changed_fields),
            schedule=names.get(one.schedule_id or "", ""),
            tone=_TONES[one.outcome] if one.outcome else "busy" if one.state is RetuneState.RUNNING else "quiet",
            outcome=retune_words.outcome(one),
            reason=retune_words.short_reason(one.outcome, one.reason),
        )
        for one in found
    )


def choices(session: Session, project_id: str) -> tuple[tuple[str, str], ...]:
    """What a schedule can be about: value and label."""
    rows = [(row, case) for row in schedules.serving_cases(session, project_id) if (case := _case(row)) is not None]
    models = sorted({case.model for _, case in rows})
    cases = [(f"key:{row.target_key}", f"{case.model}, {case.cluster}, {case.workload}") for row, case in rows]
    return (
        ("", "all recommendations"),
        *((f"model:{name}", f"every recommendation for {name}") for name in models),
        *cases,
    )


def _case(row: TuningTargetRow | None) -> ShownTarget | None:
    if row is None or row.serving is None:
        return None
    answer = row.serving.answer
    return ShownTarget(answer.model.name, cluster_words.told_apart(answer.cluster), words.workload(answer.workload))


def _ticks(schedule: Schedule, newest: Sequence[Retune]) -> tuple[Ticked, ...]:
    """Its last ticks; a change or a slow canary leaves none, but retunes."""
    made = [Ticked(tick.at, retune_words.tick_words(tick)) for tick in schedule.last_ticks]
    if schedule.trigger in (Trigger.FINGERPRINT, Trigger.DRIFT):
        own = [one for one in newest if one.schedule_id == schedule.schedule_id and one.cause != RetuneCause.MANUAL]
        made += [
            Ticked(o.created_at, f": {retune_words.cause(o.cause, o.changed_fields)}: 1 recommendation") for o in own
        ]
    return tuple(sorted(made, key=lambda tick: tick.at, reverse=True)[:_MOST_TICKS])


def _cases(schedule: Schedule) -> str:
    if schedule.cases.target_keys:
        count = len(schedule.cases.target_keys)
        return f"{count} recommendation{'s' if count != 1 else ''}: " + ", ".join(
            key[:12] for key in schedule.cases.target_keys[:3]
        )
    return (
        f"every recommendation for {schedule.cases.model}"
        if schedule.cases.model
        else "all recommendations of the project"
    )


def _limits(schedule: Schedule) -> str:
    parts = [f"starts in {', '.join(schedule.windows)} ({schedule.timezone})"] if schedule.windows else []
    if schedule.max_gpu_seconds is not None:
        parts.append(f"at most {schedule.max_gpu_seconds:,.0f} GPU-s a retune")
    if schedule.planned_gpu_hours is not None:
        gain = (
            f", worth it from an expected gain of {schedule.likely_gain * 100:.1f} %"
            if schedule.likely_gain is not None
            else ""
        )
        parts.append(f"for a training run of {schedule.planned_gpu_hours:,g} GPU-hours{gain}")
    return "; ".join(parts) or "only those of project and fleet"


def _share(text: str) -> float | str | None:
    """Per cent as a share; what is no number stays as it was typed."""
    found = _number(text.removesuffix("%"))
    return found / 100 if isinstance(found, float) else found


def _number(text: str) -> float | str | None:
    """What is no number stays as it was typed, for the error beside it."""
    try:
        return float(text) if text else None
    except ValueError:
        return text
