"""Create, read, change and run schedules. service.schedules.ticks processes their ticks."""

import logging
import secrets

from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.schedules import Schedule, SchedulePage, ScheduleSpec, Tick, TickPage
from shardtune.db.queries import best, keys, schedules
from shardtune.db.tables.retunes import ScheduleRow, ScheduleTickRow
from shardtune.service.http import etags, paging
from shardtune.service.http.errors import Conflict, NotFound, invalid, invalid_from_value_error
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyKey
from shardtune.service.process.context import Context
from shardtune.service.recommendations.record import project_of
from shardtune.service.schedules import cron, ticks

log = logging.getLogger(__name__)

_RECENT_TICKS = 5


def create_schedule(
    context: Context, spec: ScheduleSpec, idempotency: IdempotencyKey = NO_KEY, project_id: str | None = None
) -> Schedule:
    """Store a new schedule. Its first tick is the first moment after now at which it is due.

    Raises:
        Invalid: the cron expression cannot be run, or a tuning target is unknown.
        Conflict: the project has the maximum number of schedules.
    """
    project_id, now = project_of(context, project_id), context.now()
    _check_cron(context, spec)
    with idempotency.write(context) as session:
        # The project's lock makes count and insert one step for two simultaneous requests.
        if keys.lock_project(session, project_id) is None:
            raise NotFound(
                "unknown_project", f"project ({project_id}) does not exist; PUT /v1/projects/{project_id} first"
            )
        limit = context.settings.max_schedules
        if schedules.count(session, project_id) >= limit:
            raise Conflict(
                "too_many_schedules", f"project ({project_id}) has {limit} schedules already; delete one first"
            )
        # Targets must be known now: a misspelt key would otherwise select nothing at every tick.
        _check_cases(session, project_id, spec)
        row = ScheduleRow(
            id=f"schedule-{secrets.token_hex(6)}",
            project_id=project_id,
            spec=spec,
            trigger=spec.trigger,
            is_paused=False,
            next_tick_at=ticks.next_tick_of(spec, now),
            version=0,
            created_at=now,
            updated_at=now,
        )
        session.add(row)
        session.flush()
        log.info("schedule created", extra={"schedule": row.id})
        return idempotency.answer(session, schedule_view(session, row), 201)


def read(context: Context, schedule_id: str) -> Schedule:
    with context.db.read() as session:
        return schedule_view(session, _check_visible(context, schedules.get(session, schedule_id), schedule_id))


def list_schedules(context: Context, project_id: str | None, token: str | None, limit: int) -> SchedulePage:
    """Schedules of the projects visible to the sender, newest first."""
    if not context.principal.sees(project_id):
        return SchedulePage(schedules=())
    shown_project_id = project_id or context.principal.project_id
    after = paging.parse_token(token, [shown_project_id], paging.moment_and_id)
    with context.db.read() as session:
        rows = schedules.page(session, shown_project_id, after, limit + 1)
        page_rows, next_token = paging.split_page(
            rows, limit, [shown_project_id], lambda row: [row.created_at.isoformat(), row.id]
        )
        return SchedulePage(
            schedules=tuple(schedule_view(session, row) for row in page_rows), next_page_token=next_token
        )


def list_ticks(context: Context, schedule_id: str, token: str | None, limit: int) -> TickPage:
    """Ticks of a schedule (moments at which it was due) with their results, newest first."""
    after = paging.parse_token(token, [schedule_id], paging.whole_number)
    with context.db.read() as session:
        _check_visible(context, schedules.get(session, schedule_id), schedule_id)
        rows = schedules.ticks(session, schedule_id, after, limit + 1)
        page_rows, next_token = paging.split_page(rows, limit, [schedule_id], lambda row: row.id)
        return TickPage(ticks=tuple(map(_tick_view, page_rows)), next_page_token=next_token)


def replace_schedule(context: Context, schedule_id: str, spec: ScheduleSpec, if_match: str | None = None) -> Schedule:
    """Replace the settings of a schedule. Its next tick is then the first moment after now at which it is due.

    Raises:
        PreconditionFailed: the schedule has changed since the sender read it.
    """
    _check_cron(context, spec)
    now = context.now()
    with context.db.write() as session:
        row = _lock(context, session, schedule_id, if_match)
        _check_cases(session, row.project_id, spec)
        row.spec, row.trigger = spec, spec.trigger
        # From now on: ticks that were due under the old spec are not made up for under the new one.
        row.next_tick_at = None if row.is_paused else ticks.next_tick_of(spec, now)
        row.updated_at = now
        row.version += 1
        session.flush()
        return schedule_view(session, row)


def delete(context: Context, schedule_id: str, if_match: str | None = None) -> None:
    """Delete a schedule and the record of its ticks (moments at which it was due). Its queued retunes (repeated
    measurements of recommendations) are skipped; running ones continue.
    """
    with context.db.write() as session:
        row = _lock(context, session, schedule_id, if_match)
        schedules.cancel_queued(session, schedule_id, context.now(), "its schedule was deleted")
        session.delete(row)


def pause(
    context: Context, schedule_id: str, paused: bool, idempotency: IdempotencyKey = NO_KEY, if_match: str | None = None
) -> Schedule:
    """Pause a schedule, or resume it. What was due during the pause is not run, and is not run later either."""
    now = context.now()
    with idempotency.write(context) as session:
        row = _lock(context, session, schedule_id, if_match)
        if row.is_paused is not paused:
            row.is_paused, row.updated_at = paused, now
            row.next_tick_at = None if paused else ticks.next_tick_of(row.spec, now)
            row.version += 1
        if paused:
            schedules.cancel_queued(session, schedule_id, now, "its schedule was paused")
        session.flush()
        return idempotency.answer(session, schedule_view(session, row))


def run_now(context: Context, schedule_id: str, idempotency: IdempotencyKey = NO_KEY) -> Schedule:
    """Request, whatever a schedule's trigger is and even while it is paused, that the recommendations which it
    selects are measured again now.
    """
    with idempotency.write(context) as session:
        row = _lock(context, session, schedule_id, None)
        ticks.add_manual_tick(context, session, row)
        session.flush()
        return idempotency.answer(session, schedule_view(session, row))


def schedule_view(session: Session, row: ScheduleRow) -> Schedule:
    """Convert a schedule's row into the API's model."""
    return Schedule(
        **dict(row.spec),
        schedule_id=row.id,
        project_id=row.project_id,
        is_paused=row.is_paused,
        next_tick_at=row.next_tick_at,
        last_ticks=tuple(map(_tick_view, schedules.ticks(session, row.id, None, _RECENT_TICKS))),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _lock(context: Context, session: Session, schedule_id: str, if_match: str | None) -> ScheduleRow:
    row = _check_visible(context, schedules.lock(session, schedule_id), schedule_id)
    # Compared under the lock, so that two changes of the same version cannot both succeed.
    etags.check(if_match, schedule_view(session, row))
    return row


def _check_visible(context: Context, row: ScheduleRow | None, schedule_id: str) -> ScheduleRow:
    if row is None or not context.principal.sees(row.project_id):
        message = f"schedule {schedule_id} does not exist"
        raise NotFound("unknown_schedule", message, api_remedy="GET /v1/schedules lists those that do")
    return row


def _check_cron(context: Context, spec: ScheduleSpec) -> None:
    if spec.cron is None:
        return
    try:
        cron.check_expression(spec.cron, spec.timezone, context.now(), context.settings.schedule_least_gap_s)
    except ValueError as error:
        raise invalid_from_value_error("", error) from None


def _check_cases(session: Session, project_id: str, spec: ScheduleSpec) -> None:
    for key in spec.targets.target_keys:
        row = best.get_target(session, project_id, key)
        if row is None or row.recommended is None:
            message = f"target_keys ({key}) has no recommendation in project {project_id}; GET /v1/recommendations"
            raise invalid("targets.target_keys", key, message)


def _tick_view(row: ScheduleTickRow) -> Tick:
    return Tick(
        at=row.at,
        kind=row.kind,
        state=row.state,
        merged_ticks=row.merged_ticks,
        targets=row.targets,
        reason=row.reason,
    )
