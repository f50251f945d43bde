"""Process the ticks of schedules: each exactly once, with any number of replicas, even if replicas are killed.

The tick, the schedule's move to the next tick and the retunes that the tick requests (for a drift schedule: the
canaries that it sends) are one transaction.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import takewhile

from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.retunes import RetuneCause
from shardtune.api_schemas.retuning.schedules import Overlap, ScheduleSpec, TickKind, TickState, Trigger
from shardtune.db.queries import schedules
from shardtune.db.tables.retunes import ScheduleRow, ScheduleTickRow
from shardtune.service.canaries import send
from shardtune.service.process.background import sum_unlocked
from shardtune.service.process.context import Context
from shardtune.service.retuning import queue, target_selection
from shardtune.service.schedules import catch_up, cron
from shardtune.service.schedules.catch_up import DueTick

log = logging.getLogger(__name__)

_MAX_QUEUED = 10
"""Maximum number of ticks of one schedule that wait until the retunes (repeated measurements of recommendations) of
earlier ticks have ended.
"""


def next_tick_of(spec: ScheduleSpec, after: datetime) -> datetime | None:
    """Next tick of a schedule (moment at which it is due) after a given moment; None if the schedule's trigger has no
    fixed times.
    """
    return None if spec.cron is None else cron.next_tick(spec.cron, spec.timezone, after)


def account_for_due(context: Context) -> int:
    """Process every tick (moment at which a schedule runs) that is due, for all schedules. Returns the number of
    ticks that this replica of the service processed.
    """
    with context.db.read() as session:
        rows = schedules.due(session, context.now())
    return sum_unlocked(rows, partial(_account_for_schedule, context), lambda row: row.id)


def start_queued(context: Context) -> int:
    """Begin ticks that waited for the retunes (repeated measurements of recommendations) of earlier ticks; returns the
    number of ticks begun.
    """
    with context.db.read() as session:
        waiting = schedules.with_queued_ticks(session)
    return sum_unlocked(sorted(waiting), partial(_start_queued, context), str)


def _start_queued(context: Context, schedule_id: str) -> bool:
    with context.db.write() as session:
        row = schedules.lock(session, schedule_id)
        if row is None or row.is_paused or schedules.is_busy(session, schedule_id, context.now()):
            return False
        # One at a time: ticks of a schedule begin in order, each after the retunes of the previous one.
        ticks = schedules.queued_ticks(session, schedule_id)[:1]
        for tick in ticks:
            _begin_tick(context, session, row, tick, RetuneCause.SCHEDULE)
        return bool(ticks)


def add_manual_tick(context: Context, session: Session, row: ScheduleRow) -> None:
    """Add a tick of a schedule that a person has requested, even if the schedule is paused; two requests in one moment
    count once. The caller has locked the schedule.
    """
    now = context.now()
    if schedules.tick_at(session, row.id, TickKind.MANUAL, now) is None:
        _begin_tick(
            context,
            session,
            row,
            _insert_tick(session, row, DueTick(now, runs=True), TickKind.MANUAL, now),
            RetuneCause.MANUAL,
        )


def _account_for_schedule(context: Context, schedule: ScheduleRow) -> int:
    """Process every tick (moment at which a schedule runs) of one schedule that is due, and return their number; 0 if
    another replica of the service processes them.
    """
    now, spec = context.now(), schedule.spec
    assert spec.cron is not None and schedule.next_tick_at is not None
    later = cron.ticks(spec.cron, spec.timezone, schedule.next_tick_at)
    passed = [schedule.next_tick_at, *takewhile(lambda tick: tick <= now, later)]
    with context.db.write() as session:
        row = schedules.lock(session, schedule.id)
        # Written only if the schedule's next tick is as it was read: another replica may have moved it.
        if row is None or not schedules.advance(session, schedule, next_tick_of(spec, passed[-1])):
            return 0
        for due_tick in catch_up.account_for_ticks(passed, now, spec):
            _record_tick(context, session, row, spec, due_tick)
    log.info("ticks accounted for", extra={"schedule": schedule.id, "ticks": len(passed)})
    return len(passed)


def _record_tick(context: Context, session: Session, row: ScheduleRow, spec: ScheduleSpec, due_tick: DueTick) -> None:
    now = context.now()
    if schedules.tick_at(session, row.id, TickKind.CRON, due_tick.at) is not None:
        # The clock went back and the schedule was set anew: this tick is accounted for already.
        return
    waiting = len(schedules.queued_ticks(session, row.id))
    # A waiting tick counts, too, so that a new tick cannot overtake it.
    is_busy = waiting > 0 or schedules.is_busy(session, row.id, now)
    tick = _insert_tick(session, row, due_tick, TickKind.CRON, now)
    if not due_tick.runs:
        late_s = (now - due_tick.at).total_seconds()
        tick.state, tick.reason = (
            TickState.MISSED,
            f"noticed {late_s:.0f} s late, which catch_up {spec.catch_up} leaves out",
        )
    elif not is_busy:
        _begin_tick(context, session, row, tick, RetuneCause.SCHEDULE)
    elif spec.overlap == Overlap.SKIP or waiting >= _MAX_QUEUED:
        queued_text = f", and {waiting} ticks wait already" if waiting else ""
        tick.state, tick.reason = TickState.SKIPPED, f"the retunes of the previous tick have not ended{queued_text}"
    else:
        tick.reason = "waits until the retunes of the previous tick have ended"


def _insert_tick(
    session: Session, row: ScheduleRow, due_tick: DueTick, kind: TickKind, now: datetime
) -> ScheduleTickRow:
    tick = ScheduleTickRow(
        schedule_id=row.id,
        at=due_tick.at,
        kind=kind,
        state=TickState.QUEUED,
        merged_ticks=due_tick.merged_ticks,
        targets=0,
        created_at=now,
    )
    session.add(tick)
    session.flush()
    return tick


def _begin_tick(
    context: Context, session: Session, row: ScheduleRow, tick: ScheduleTickRow, cause: RetuneCause
) -> None:
    """Begin the tick of a schedule: request retunes (repeated measurements of recommendations). A drift schedule
    sends canaries (repeated runs of recommended configurations) instead, unless a person has requested the tick.
    """
    spec = row.spec
    keys = target_selection.select_targets(context, session, row.project_id, spec.targets)
    tick.targets = len(keys)
    tick.state, tick.reason = (
        (TickState.STARTED, None) if keys else (TickState.SKIPPED, "no recommendation matches the schedule's targets")
    )
    if spec.trigger is Trigger.DRIFT and cause == RetuneCause.SCHEDULE:
        _send_canaries(context, session, row, tick, keys)
    else:
        _request_retunes(context, session, row, tick, cause, keys)
    session.flush()


def _send_canaries(
    context: Context, session: Session, row: ScheduleRow, tick: ScheduleTickRow, keys: Sequence[str]
) -> None:
    results = [send.send_canary(context, session, row.project_id, key, tick.at) for key in keys]
    reasons = Counter(result.reason for result in results if isinstance(result, send.NotSent))
    if reasons:
        summary = "; ".join(f"{reason} ({count})" for reason, count in reasons.items())
        tick.reason = f"no canary for {reasons.total()} of {len(keys)} targets: {summary}"
        tick.state = TickState.SKIPPED if reasons.total() == len(keys) else tick.state


def _request_retunes(
    context: Context, session: Session, row: ScheduleRow, tick: ScheduleTickRow, cause: RetuneCause, keys: Sequence[str]
) -> None:
    now = context.now()
    requested = [
        queue.request_retune(
            session,
            project_id=row.project_id,
            target_key=key,
            cause=cause,
            schedule_id=row.id,
            not_before=now,
            now=now,
        )
        for key in keys
    ]
    unfinished_count = sum(retune.schedule_id != row.id for retune in requested)
    if unfinished_count:
        tick.reason = f"{unfinished_count} of the targets had an unfinished retune already"
