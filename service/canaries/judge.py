"""Canaries: run what is served again from time to time, and see whether it is as fast as it was measured.

Each time one canary of a case goes to one worker, in turn (service.canaries.send). One that looks slow has a peer run the
same: where the peer is as fast as ever the worker is at fault, and said to be; where it is slow too, or there is none, the
case is measured anew. The statistics are tuner.freshness.drift's. Every step may be taken by several replicas, and again after a crash.
"""

import logging
from datetime import datetime
from functools import partial

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.recommendations.best import DecisionAction
from shardtune.api_schemas.retuning.canaries import CanaryRole, CanaryVerdict
from shardtune.api_schemas.retuning.retunes import RetuneCause
from shardtune.api_schemas.studies.study import StudyState
from shardtune.db.queries import best, canaries, studies, workers
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.canaries import CanaryRow
from shardtune.db.tables.studies import StudyRow, WorkerRow
from shardtune.service.canaries import reference, send
from shardtune.service.lifecycle import transitions
from shardtune.service.process.background import count_done, run_every
from shardtune.service.process.context import Context
from shardtune.service.recommendations.record import SERVICE, note_decision, notify
from shardtune.service.retuning import queue
from shardtune.service.workers import compatibility
from shardtune.service.workers.registry import live_since
from shardtune.tuner.freshness import drift

log = logging.getLogger(__name__)


def watch(context: Context) -> int:
    """Judge the canaries that have run, and begin those that are due; returns how many were judged or begun."""
    with context.db.read() as session:
        waiting = [(row.id, row.study_id) for row in canaries.open_ones(session)]
    judged = count_done(waiting, lambda canary: _judge(context, *canary), lambda canary: canary[1])
    with context.db.read() as session:
        cases = send.watched(context, session)
    return judged + count_done(cases, lambda case: send.begin(context, *case), lambda case: case[1])


async def keep_watching(context: Context) -> None:
    """Watch until cancelled."""
    await run_every(context.settings.canary_check_s, looking_after_canaries=partial(run_in_threadpool, watch, context))


def _judge(context: Context, canary_id: str, study_id: str) -> bool:
    """The verdict on a canary whose study has ended, or whose peer has."""
    peer: str | None = None
    with context.db.write() as session:
        study, now = studies.lock(session, study_id), context.now()
        found = session.get(CanaryRow, canary_id)
        assert found is not None
        row = best.lock(session, found.project_id, found.target_key)
        canary = canaries.lock(session, canary_id)
        if canary.ended_at is not None:
            return False  # another replica judged it since it was read
        if study.state.is_open and not _give_up(context, session, canary, study, now):
            return False
        if row is None or row.serving_id != canary.recommendation_id:
            _end(canary, CanaryVerdict.UNMEASURED, "what is served was changed meanwhile", now)
            return True
        if canary.verdict is None and not _read(session, canary, study, row, now):
            return True
        if canary.role == CanaryRole.PEER:
            return False
        other = _peer(session, canary)
        if other is None:
            able = send.able(context, session, row, canary.recommendation)
            peer = next((worker.id for worker in able if worker.id != canary.worker_id), None)
            if peer is None:
                _drifted(context, session, canary, row, "there is no other worker to compare it with", now)
        elif other.verdict == CanaryVerdict.NORMAL:
            _fault(session, canary, other, now)
        elif other.verdict is not None:
            _end(
                other, CanaryVerdict.DRIFT if other.verdict == CanaryVerdict.SLOW else other.verdict, other.reason, now
            )
            _drifted(context, session, canary, row, f"{other.worker.name}: {other.reason}", now)
        else:
            return False
    if peer is not None:
        send.send_peer(context, canary_id, peer)
    return True


def _give_up(context: Context, session: Session, canary: CanaryRow, study: StudyRow, now: datetime) -> bool:
    """End a canary whose worker is gone, or is another machine by now; the next period has another."""
    worker = session.get(WorkerRow, canary.worker_id)
    assert worker is not None
    if worker.seen_at >= live_since(context) and compatibility.may_run(worker, study):
        return False
    transitions.end_study(session, study, StudyState.CANCELLED, f"worker {worker.name} is gone, or has changed", now)
    return True


def _read(session: Session, canary: CanaryRow, study: StudyRow, row: TuningTargetRow, now: datetime) -> bool:
    """Take in what the study measured; True where it looks slow, and more has to be known."""
    assert study.system_study is not None and row.serving is not None
    runs = reference.speeds(session, study)
    if study.state is not StudyState.COMPLETE or not runs:
        _end(canary, CanaryVerdict.UNMEASURED, study.reason, now)
        return False
    canary.tokens_per_s_per_gpu = max(runs)
    least = study.system_study.repeat_below
    if least is None:
        _end(
            canary,
            CanaryVerdict.NORMAL,
            "there were too few runs to hold it against: what it measured is what is normal",
            now,
        )
        return False
    known = reference.normal(session, row, row.serving).known
    canary.change = drift.change(known, canary.tokens_per_s_per_gpu) if known is not None else None
    if canary.tokens_per_s_per_gpu >= least:
        _end(canary, CanaryVerdict.NORMAL, None, now)
        worker = workers.lock(session, canary.worker_id)
        if worker is not None:
            worker.condition = None
        return False
    said = f"{canary.change:.2f} times the measured speed" if canary.change is not None else "slow"
    canary.verdict, canary.reason = CanaryVerdict.SLOW, f"{said}, the fastest of {len(runs)} runs"
    return True


def _peer(session: Session, canary: CanaryRow) -> CanaryRow | None:
    found = canaries.of_case(session, canary.project_id, canary.target_key)
    return next((row for row in found if row.role == CanaryRole.PEER and row.tick == canary.tick), None)


def _fault(session: Session, canary: CanaryRow, peer: CanaryRow, now: datetime) -> None:
    """The worker alone is slow."""
    reason = f"{canary.reason}; {peer.worker.name} is as fast as ever with the same"
    _end(canary, CanaryVerdict.WORKER, reason, now)
    worker = workers.lock(session, canary.worker_id)
    if worker is not None:
        # A worker that serves every project is shown to all of them, and its peer may be one's own.
        compared = peer.worker.name if peer.worker.project_id in (None, worker.project_id) else "another worker"
        told = f"{canary.reason}; {compared} is as fast as ever with the same"
        worker.condition = f"slower than it was: {told} (canary of {now:%Y-%m-%d %H:%M} UTC)"
        log.warning("worker is slow: %s", reason, extra={"worker": worker.name, "canary": canary.id})


def _drifted(
    context: Context, session: Session, canary: CanaryRow, row: TuningTargetRow, compared: str, now: datetime
) -> None:
    """The case is slower than it was: say so, and have it measured anew."""
    assert row.serving is not None
    reason = f"{canary.worker.name}: {canary.reason}; {compared}"
    _end(canary, CanaryVerdict.DRIFT, reason, now)
    note_decision(session, row, row.serving, DecisionAction.REGRESSION, SERVICE, reason, now)
    notify(session, EventType.BEST_REGRESSION, row.serving, now, reason=reason, change=canary.change)
    queue.request(
        session, project_id=row.project_id, target_key=row.target_key, cause=RetuneCause.DRIFT, not_before=now, now=now
    )
    log.warning("what is served has become slower: %s", reason, extra={"target_key": row.target_key})


def _end(canary: CanaryRow, verdict: CanaryVerdict, reason: str | None, now: datetime) -> None:
    canary.verdict, canary.reason, canary.ended_at = verdict, reason, now
