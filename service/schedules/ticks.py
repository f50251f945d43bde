"""Account for the ticks of schedules: each once, whatever number of replicas looks, and whenever one is killed.

The tick, the schedule's move to the next one and the retunes it asks for (of a drift schedule: the canaries it sends) are
one transaction.
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
from shardtune.service.process.background import count_done
from shardtune.service.process.context import Context
from shardtune.service.retuning import queue, target_selection
from shardtune.service.schedules import catch_up, cron
from shardtune.service.schedules.catch_up import Due

log = logging.getLogger(__name__)

_MOST_QUEUED = 10
"""Ticks of one schedule that may wait for the retunes before them."""


def following(spec: ScheduleSpec, after: datetime) -> datetime | None:
    """The next tick after a moment; None where the trigger has no times."""
    return None if spec.cron is None else cron.next_tick(spec.cron, spec.timezone, after)


def account_for(context: Context) -> int:
    """Account for every tick that is due; returns how many this replica took."""
    with context.db.read() as session:
        rows = schedules.due(session, context.now())
    return count_done(rows, partial(_account, context), lambda row: row.id)


def start_queued(context: Context) -> int:
    """Begin the ticks that waited for the retunes before them; returns how many."""
    with context.db.read() as session:
        waiting = schedules.with_queued_ticks(session)
    return count_done(sorted(waiting), partial(_start_queued, context), str)


def _start_queued(context: Context, schedule_id: str) -> bool:
    with context.db.write() as session:
        row = schedules.lock(session, schedule_id)
        if row is None or row.is_paused or schedules.is_busy(session, schedule_id):
            return False
        ticks = schedules.queued_ticks(session, schedule_id)[:1]
        for tick in ticks:
            _begin(context, session, row, tick, RetuneCause.SCHEDULE)
        return bool(ticks)


def run_now(context: Context, session: Session, row: ScheduleRow) -> None:
    """A tick by hand, also of a paused schedule; twice in one moment is once. The caller holds the schedule."""
    now = context.now()
    if schedules.tick_at(session, row.id, TickKind.MANUAL, now) is None:
        _begin(context, session, row, _add(session, row, Due(now, runs=True), TickKind.MANUAL, now), RetuneCause.MANUAL)


def _account(context: Context, seen: ScheduleRow) -> int:
    """The ticks of one schedule; 0 where another replica has them."""
    now, spec = context.now(), seen.spec
    assert spec.cron is not None and seen.next_tick_at is not None
    later = cron.ticks(spec.cron, spec.timezone, seen.next_tick_at)
    passed = [seen.next_tick_at, *takewhile(lambda tick: tick <= now, later)]
    with context.db.write() as session:
        row = schedules.lock(session, seen.id)
        if row is None or not schedules.advance(session, seen, following(spec, passed[-1])):
            return 0
        for due in catch_up.account(passed, now, spec):
            _take(context, session, row, spec, due)
    log.info("ticks accounted for", extra={"schedule": seen.id, "ticks": len(passed)})
    return len(passed)


def _take(context: Context, session: Session, row: ScheduleRow, spec: ScheduleSpec, due: Due) -> None:
    now = context.now()
    if schedules.tick_at(session, row.id, TickKind.CRON, due.at) is not None:
        # The clock went back and the schedule was set anew: this tick has had its turn.
        return
    waiting = len(schedules.queued_ticks(session, row.id))
    busy = waiting > 0 or schedules.is_busy(session, row.id)
    tick = _add(session, row, due, TickKind.CRON, now)
    if not due.runs:
        late_s = (now - due.at).total_seconds()
        tick.state, tick.reason = (
            TickState.MISSED,
            f"noticed {late_s:.0f} s late, which catch_up {spec.catch_up} leaves out",
        )
    elif not busy:
        _begin(context, session, row, tick, RetuneCause.SCHEDULE)
    elif spec.overlap == Overlap.SKIP or waiting >= _MOST_QUEUED:
        more = f", and {waiting} ticks wait already" if waiting else ""
        tick.state, tick.reason = TickState.SKIPPED, f"the retunes of the tick before have not ended{more}"
    else:
        tick.reason = "waits until the retunes of the tick before have ended"


def _add(session: Session, row: ScheduleRow, due: Due, kind: TickKind, now: datetime) -> ScheduleTickRow:
    tick = ScheduleTickRow(
        schedule_id=row.id,
        at=due.at,
        kind=kind,
        state=TickState.QUEUED,
        stands_for=due.stands_for,
        cases=0,
        created_at=now,
    )
    session.add(tick)
    session.flush()
    return tick


def _begin(context: Context, session: Session, row: ScheduleRow, tick: ScheduleTickRow, cause: RetuneCause) -> None:
    """Do what a tick is for: ask for retunes, or, of a drift schedule that no person runs, send canaries."""
    spec = row.spec
    keys = target_selection.selected(context, session, row.project_id, spec.cases)
    tick.cases = len(keys)
    tick.state, tick.reason = (
        (TickState.STARTED, None) if keys else (TickState.SKIPPED, "no recommendation matches its cases")
    )
    if spec.trigger is Trigger.DRIFT and cause == RetuneCause.SCHEDULE:
        _send_canaries(context, session, row, tick, keys)
    else:
        _ask(context, session, row, tick, cause, keys)
    session.flush()


def _send_canaries(
    context: Context, session: Session, row: ScheduleRow, tick: ScheduleTickRow, keys: Sequence[str]
) -> None:
    answers = [send.send(context, session, row.project_id, key, tick.at) for key in keys]
    why_not = Counter(answer.reason for answer in answers if isinstance(answer, send.NotSent))
    if why_not:
        parts = "; ".join(f"{why} ({count})" for why, count in why_not.items())
        tick.reason = f"no canary for {why_not.total()} of its {len(keys)} cases: {parts}"
        tick.state = TickState.SKIPPED if why_not.total() == len(keys) else tick.state


def _ask(
    context: Context, session: Session, row: ScheduleRow, tick: ScheduleTickRow, cause: RetuneCause, keys: Sequence[str]
) -> None:
    now = context.now()
    asked = [
        queue.request(
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
    known = sum(retune.schedule_id != row.id for retune in asked)
    if known:
        tick.reason = f"{known} of them had an unfinished retune already"
