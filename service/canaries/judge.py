"""Judge canaries: repeated runs of recommended configurations are compared with the speed measured earlier.

One canary of a tuning target runs on one worker at a time, in turn (service.canaries.send). If the run seems slow, a
second worker (peer) runs the same configuration. If the peer has normal speed, the first worker is at fault; if the
peer is slow too, or there is no peer, the target is retuned. tuner.freshness.drift computes the statistics. Several
replicas may execute each step, and repeat it after a crash.
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
from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.queries import best, canaries, leases, studies, workers
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.canaries import CanaryRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.canaries import reference, send
from shardtune.service.lifecycle import transitions
from shardtune.service.process.background import run_every, sum_unlocked
from shardtune.service.process.context import Context
from shardtune.service.recommendations.record import SERVICE, notify, record_decision
from shardtune.service.retuning import queue
from shardtune.service.workers import compatibility
from shardtune.service.workers.registry import live_since
from shardtune.tuner.freshness import drift

log = logging.getLogger(__name__)


def judge_and_begin(context: Context) -> int:
    """Judge the canaries (repeated runs of recommended configurations) that have run, and start those that are due.
    Returns how many were judged or started.
    """
    with context.db.read() as session:
        waiting = [(row.id, row.study_id) for row in canaries.open_canaries(session)]
    try:
        judged = sum_unlocked(waiting, lambda canary: _judge(context, *canary), lambda canary: canary[1])
    finally:
        # A canary that cannot be judged must not keep others from their start.
        begun = _begin_due(context)
    return judged + begun


def _begin_due(context: Context) -> int:
    with context.db.read() as session:
        cases = send.watched_targets(context, session)
    return sum_unlocked(cases, lambda case: send.begin_if_due(context, *case), lambda case: case[1])


async def keep_watching(context: Context) -> None:
    """Judge and start canaries (repeated runs of recommended configurations) at intervals until cancelled."""
    await run_every(
        context.settings.canary_check_s, looking_after_canaries=partial(run_in_threadpool, judge_and_begin, context)
    )


def _judge(context: Context, canary_id: str, study_id: str) -> bool:
    """Judge a canary (repeated run of a recommended configuration) whose study has ended, or whose repetition on a
    second worker has ended.
    """
    peer_worker_id: str | None = None
    with context.db.write() as session:
        study, now = studies.lock(session, study_id), context.now()
        canary_row = session.get(CanaryRow, canary_id)
        assert canary_row is not None
        row = best.lock(session, canary_row.project_id, canary_row.target_key)
        canary = canaries.lock(session, canary_id)
        if canary.ended_at is not None:
            return False  # Another replica judged it since it was read.
        if study.state.is_open and not _cancel_without_worker(context, session, canary, study, now):
            return False
        # The recommendation changed meanwhile: the canary's speed says nothing about the new one.
        if row is None or row.recommended_id != canary.recommendation_id:
            _end(canary, CanaryVerdict.UNMEASURED, "the recommendation changed meanwhile", now)
            return True
        if canary.verdict is None and not _is_slow(session, canary, study, row, now):
            return True
        if canary.role == CanaryRole.PEER:
            return False
        peer_canary = _find_peer(session, canary)
        if peer_canary is None:
            suitable_workers = send.suitable_workers(context, session, row, canary.recommendation)
            peer_worker_id = next((worker.id for worker in suitable_workers if worker.id != canary.worker_id), None)
            if peer_worker_id is None:
                _end_as_drift(context, session, canary, row, "there is no other worker to compare it with", now)
        elif peer_canary.verdict == CanaryVerdict.NORMAL:
            _end_as_worker_fault(session, canary, peer_canary, now)
        elif peer_canary.verdict is not None:
            _end(
                peer_canary,
                CanaryVerdict.DRIFT if peer_canary.verdict == CanaryVerdict.SLOW else peer_canary.verdict,
                peer_canary.reason,
                now,
            )
            _end_as_drift(context, session, canary, row, f"{peer_canary.worker.name}: {peer_canary.reason}", now)
        else:
            return False
    if peer_worker_id is not None:
        send.send_peer(context, canary_id, peer_worker_id)
    return True


def _cancel_without_worker(
    context: Context, session: Session, canary: CanaryRow, study: StudyRow, now: datetime
) -> bool:
    """End a canary (repeated run of a recommended configuration) whose worker has disappeared or changed, or was
    drained before the run began. The next canary follows at its usual time.
    """
    worker = session.get(WorkerRow, canary.worker_id)
    assert worker is not None
    unreadable = send.why_unreadable(canary.recommendation, worker)
    # A run that a drained worker executes may finish.
    is_executed = TrialState.RUNNING in leases.open_states(session, [study.id]).get(study.id, ())
    is_able = worker.seen_at >= live_since(context) and compatibility.can_run(worker, study)
    if unreadable is None and is_able and (is_executed or not worker.is_draining):
        return False
    gone = f"worker {worker.name} is gone, is drained, or has changed"
    reason = gone if unreadable is None else f"{worker.name}: {unreadable}"
    no_worker = StudyReason(code=StudyReasonCode.NO_WORKER, text=reason)
    transitions.end_study(session, study, StudyState.CANCELLED, no_worker, now)
    return True


def _is_slow(session: Session, canary: CanaryRow, study: StudyRow, row: TuningTargetRow, now: datetime) -> bool:
    """Read the measurement of a canary (repeated run of a recommended configuration). Returns True if the run seems
    slow, so that a second worker has to repeat it.
    """
    assert study.system_study is not None and row.recommended is not None
    runs = reference.trial_speeds(session, study)
    if study.state is not StudyState.COMPLETE or not runs:
        _end(canary, CanaryVerdict.UNMEASURED, study.reason, now)
        return False
    # Disturbances only slow a run down, so the fastest run is the least disturbed.
    canary.tokens_per_s_per_gpu = max(runs)
    slow_below = study.system_study.repeat_below
    if slow_below is None:
        _end(
            canary,
            CanaryVerdict.NORMAL,
            "there were too few runs to compare with: its speed becomes part of the reference",
            now,
        )
        return False
    reference_speed = reference.reference_of(session, row, row.recommended).reference
    canary.change = (
        drift.relative_speed(reference_speed, canary.tokens_per_s_per_gpu) if reference_speed is not None else None
    )
    if canary.tokens_per_s_per_gpu >= slow_below:
        _end(canary, CanaryVerdict.NORMAL, None, now)
        worker = workers.lock(session, canary.worker_id)
        if worker is not None:
            worker.condition = None
        return False
    slowness = f"{canary.change:.2f} times the measured speed" if canary.change is not None else "slow"
    canary.verdict, canary.reason = CanaryVerdict.SLOW, f"{slowness}, the fastest of {len(runs)} runs"
    return True


def _find_peer(session: Session, canary: CanaryRow) -> CanaryRow | None:
    target_canaries = canaries.of_target(session, canary.project_id, canary.target_key)
    return next((row for row in target_canaries if row.role == CanaryRole.PEER and row.tick == canary.tick), None)


def _end_as_worker_fault(session: Session, canary: CanaryRow, peer: CanaryRow, now: datetime) -> None:
    """End a canary (repeated run of a recommended configuration) that was slow on one worker only, and record this
    with the worker as a fault.
    """
    reason = f"{canary.reason}; {peer.worker.name} has its normal speed with the same configuration"
    _end(canary, CanaryVerdict.WORKER, reason, now)
    worker = workers.lock(session, canary.worker_id)
    if worker is not None:
        # A worker that serves every project is shown to all of them, so it must not name a peer of one project.
        compared = peer.worker.name if peer.worker.project_id in (None, worker.project_id) else "another worker"
        explanation = f"{canary.reason}; {compared} has its normal speed with the same configuration"
        worker.condition = f"slower than it was: {explanation} (canary of {now:%Y-%m-%d %H:%M} UTC)"
        log.warning("worker is slow: %s", reason, extra={"worker": worker.name, "canary": canary.id})


def _end_as_drift(
    context: Context, session: Session, canary: CanaryRow, row: TuningTargetRow, compared: str, now: datetime
) -> None:
    """End a canary (repeated run of a recommended configuration) whose configuration became slower on all workers,
    and request that the recommendation is measured again.
    """
    assert row.recommended is not None
    reason = f"{canary.worker.name}: {canary.reason}; {compared}"
    _end(canary, CanaryVerdict.DRIFT, reason, now)
    record_decision(session, row, row.recommended, DecisionAction.REGRESSION, SERVICE, reason, now)
    notify(session, EventType.BEST_REGRESSION, row.recommended, now, reason=reason, change=canary.change)
    queue.request_retune(
        session, project_id=row.project_id, target_key=row.target_key, cause=RetuneCause.DRIFT, not_before=now, now=now
    )
    log.warning("a recommended configuration has become slower: %s", reason, extra={"target_key": row.target_key})


def _end(canary: CanaryRow, verdict: CanaryVerdict, reason: str | None, now: datetime) -> None:
    canary.verdict, canary.reason, canary.ended_at = verdict, reason, now
