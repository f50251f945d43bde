"""Values of the page of schedules and retunes: next runs, results of the last ticks, costs and savings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.orm import Session

from shardtune.api_schemas import times
from shardtune.api_schemas.formatting import counted
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
    """Tuning target of a recommendation."""

    model: str
    cluster: str
    workload: str


@dataclass(frozen=True)
class TickLine:
    """Time and result of a tick (one scheduled run) of a schedule."""

    at: datetime
    words: str


@dataclass(frozen=True)
class ScheduleCard:
    """One schedule with its next run and its last ticks (scheduled runs)."""

    schedule: Schedule
    trigger: str
    next_run: str
    """Time of the schedule's next run; empty for a schedule that changes of hardware or software trigger, instead of a
    time."""
    ticks: tuple[TickLine, ...]
    must_wait: bool
    """Whether a run that a user starts now would wait for the schedule's time window."""
    targets: str
    limits: str


@dataclass(frozen=True)
class RetuneLine:
    """One retune (repeated measurement of a recommendation) with its outcome and cost."""

    retune: Retune
    case: ShownTarget | None
    """Tuning target of the retune; None if its recommendation no longer exists."""
    cause: str
    schedule: str
    """Name of the schedule that requested the retune. Empty if no schedule requested it, or the schedule was
    deleted."""
    tone: str
    outcome: str
    reason: str


class ScheduleForm(BaseModel):
    """Fields of the schedule form, kept as text so that the page can show wrong input beside its error."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(default="", max_length=_LONGEST)
    trigger: str = "cron"
    cron: str = Field(default="0 3 * * 0", max_length=_LONGEST)
    timezone: str = Field(default="UTC", max_length=_LONGEST)
    targets: str = ""
    """Tuning targets that the schedule measures: all if empty, else those of a model (`model:NAME`) or one target
    (`key:TARGET_KEY`)."""
    windows: str = Field(default="", max_length=_LONGEST)
    overlap: str = "skip"
    catch_up: str = "one"
    planned_gpu_hours: str = Field(default="", max_length=40)
    likely_gain: str = Field(default="", max_length=40)
    """Expected speed-up in per cent."""
    max_gpu_seconds: str = Field(default="", max_length=40)


class ScheduleFormErrors(Exception):
    """The form has invalid fields."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = tuple(errors)


def spec_of(form: ScheduleForm) -> ScheduleSpec:
    """Convert the form to a schedule.

    Raises:
        ScheduleFormErrors: some fields are invalid; the error has an entry for each of them.
    """
    kind, _, named = form.targets.partition(":")
    values: dict[str, Any] = {
        "name": form.name.strip(),
        "trigger": form.trigger,
        # Only cron and drift use the expression; for other triggers the form keeps the text, the schedule does not.
        "cron": form.cron.strip() or None if form.trigger in ("cron", "drift") else None,
        "timezone": form.timezone.strip() or "UTC",
        "targets": {"target_keys": [named] if kind == "key" else [], "model": named if kind == "model" else None},
        "windows": [part.strip() for part in form.windows.split(",") if part.strip()],
        "overlap": form.overlap,
        "catch_up": form.catch_up,
        "planned_gpu_hours": _number(form.planned_gpu_hours.strip()),
        "likely_gain": _fraction(form.likely_gain.strip()),
        "max_gpu_seconds": _number(form.max_gpu_seconds.strip()),
    }
    try:
        return ScheduleSpec.model_validate(values)
    except ValidationError as error:
        raise ScheduleFormErrors([field_error(item) for item in error.errors()]) from None


def cards(stored: Sequence[Schedule], newest: Sequence[Retune], now: datetime) -> tuple[ScheduleCard, ...]:
    """Return a card for each schedule. If changes trigger the schedule, its card shows the `newest` retunes in place
    of ticks."""
    return tuple(
        ScheduleCard(
            schedule=schedule,
            trigger=retune_words.trigger_text(schedule),
            next_run=retune_words.next_run(schedule, now) if schedule.next_tick_at is not None else "",
            ticks=_ticks(schedule, newest),
            must_wait=not times.is_open(schedule.windows, schedule.timezone, now),
            targets=_targets_text(schedule),
            limits=_limits_text(schedule),
        )
        for schedule in stored
    )


def lines(session: Session, newest: Sequence[Retune], names: Mapping[str, str]) -> tuple[RetuneLine, ...]:
    """Return a table line for each retune; `names` holds the schedules' names by their ids."""
    # One query for all lines: the page is fetched again every few seconds.
    served = best.get_targets(session, {(retune.project_id, retune.target_key) for retune in newest})
    return tuple(
        RetuneLine(
            retune=retune,
            case=_target(served.get((retune.project_id, retune.target_key))),
            cause=retune_words.cause(retune.cause, retune.changed_fields),
            schedule=names.get(retune.schedule_id or "", ""),
            tone=_TONES[retune.outcome]
            if retune.outcome
            else "busy"
            if retune.state is RetuneState.RUNNING
            else "quiet",
            outcome=retune_words.outcome(retune),
            reason=retune.reason or "",
        )
        for retune in newest
    )


def choices(session: Session, project_id: str) -> tuple[tuple[str, str], ...]:
    """Return value and label of each choice of tuning targets that the form offers."""
    rows = [
        (row, case) for row in schedules.recommended_targets(session, project_id) if (case := _target(row)) is not None
    ]
    models = sorted({case.model for _, case in rows})
    targets = [(f"key:{row.target_key}", f"{case.model}, {case.cluster}, {case.workload}") for row, case in rows]
    return (
        ("", "all recommendations"),
        *((f"model:{name}", f"every recommendation for {name}") for name in models),
        *targets,
    )


def _target(row: TuningTargetRow | None) -> ShownTarget | None:
    # The row outlives its recommendation: a withdrawn one leaves the target without an answer.
    if row is None or row.recommended is None:
        return None
    answer = row.recommended.answer
    return ShownTarget(
        answer.model.name, cluster_words.cluster_with_memory(answer.cluster), words.workload(answer.workload)
    )


def _ticks(schedule: Schedule, newest: Sequence[Retune]) -> tuple[TickLine, ...]:
    """Return the last ticks (scheduled runs) of a schedule. For a schedule that changes trigger, return its retunes
    instead."""
    ticks = [TickLine(tick.at, retune_words.tick_result(tick)) for tick in schedule.last_ticks]
    if schedule.trigger in (Trigger.FINGERPRINT, Trigger.DRIFT):
        own = [
            retune
            for retune in newest
            if retune.schedule_id == schedule.schedule_id and retune.cause != RetuneCause.MANUAL
        ]
        ticks += [
            TickLine(retune.created_at, f": {retune_words.cause(retune.cause, retune.changed_fields)}: 1 retune")
            for retune in own
        ]
    return tuple(sorted(ticks, key=lambda tick: tick.at, reverse=True)[:_MOST_TICKS])


def _targets_text(schedule: Schedule) -> str:
    if schedule.targets.target_keys:
        count = len(schedule.targets.target_keys)
        return f"{counted(count, 'recommendation')}: " + ", ".join(key[:12] for key in schedule.targets.target_keys[:3])
    return (
        f"every recommendation for {schedule.targets.model}"
        if schedule.targets.model
        else "all recommendations of the project"
    )


def _limits_text(schedule: Schedule) -> str:
    parts = [f"starts in {', '.join(schedule.windows)} ({schedule.timezone})"] if schedule.windows else []
    if schedule.max_gpu_seconds is not None:
        parts.append(f"at most {schedule.max_gpu_seconds:,.0f} GPU-s per retune")
    if schedule.planned_gpu_hours is not None:
        gain = (
            f", worth it from an expected gain of {schedule.likely_gain * 100:.1f} %"
            if schedule.likely_gain is not None
            else ""
        )
        parts.append(f"for a training run of {schedule.planned_gpu_hours:,g} GPU-hours{gain}")
    return "; ".join(parts) or "limits of the project and the fleet only"


def _fraction(text: str) -> float | str | None:
    """Convert per cent to a fraction; return other text unchanged, so that the form shows it beside its error."""
    value = _number(text.removesuffix("%"))
    return value / 100 if isinstance(value, float) else value


def _number(text: str) -> float | str | None:
    """Convert text to a number; return any other text unchanged, so that the form shows it beside its error."""
    # An empty field means no limit, not 0.
    try:
        return float(text) if text else None
    except ValueError:
        return text
