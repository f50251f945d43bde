"""Canaries: run what is served again from time to time, and see whether it is as fast as it was measured.

Each period one canary of a case goes to one worker, in turn. One that looks slow has a peer run the same: where the peer is
as fast as ever the worker is at fault, and said to be; where it is slow too, or there is none, the case is measured anew.
The statistics are tuner.drift's. Every step may be taken by several replicas at once, and again after a crash.
"""

import asyncio
import hashlib
import logging
from datetime import UTC, datetime, timedelta

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api_schemas.errands import Errand
from api_schemas.retunes import RetuneState
from api_schemas.studies import Budget, StudyState
from db import best, canaries, retunes, studies, trials, workers
from db.best_rows import BestRow, RecommendationRow
from db.canary_rows import CanaryRow
from db.rows import StudyRow, WorkerRow
from service import canary_reference, errands, matching, moves, retune_queue, study_view
from service.context import Context
from service.recommendations import SERVICE, note_decision, told
from service.workers import live_since
from tuner import drift

log = logging.getLogger(__name__)

_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
_UNFINISHED = (StudyState.RUNNING, StudyState.PAUSED)


def watch(context: Context) -> int:
    """Judge the canaries that have run, and begin those that are due; returns how many were judged or begun."""
    with context.db.read() as session:
        waiting = [(row.id, row.study_id) for row in canaries.open_ones(session)]
    judged = sum(_judge(context, canary_id, study_id) for canary_id, study_id in waiting)
    period_s = context.settings.canary_period_s
    if not period_s:
        return judged
    with context.db.read() as session:
        cases = [(row.project_id, row.study_key) for row in canaries.watched(session)]
    return judged + sum(begin(context, project_id, study_key, period_s) for project_id, study_key in cases)


async def keep_watching(context: Context) -> None:
    """Watch until cancelled."""
    while True:
        await asyncio.sleep(context.settings.canary_check_s)
        try:
            await run_in_threadpool(watch, context)
        except Exception:
            # What is due stays due.
            log.exception("canaries could not be looked after; trying again")


def begin(context: Context, project_id: str, study_key: str, period_s: float) -> bool:
    """Send the canary of this period to the worker that had one longest ago; False: none is due, or there is no worker."""
    now, period = context.now(), timedelta(seconds=period_s)
    tick = (now - _EPOCH) // period
    with context.db.read() as session:
        row = best.served(session, project_id, study_key)
        if row is None or row.serving is None or now - row.serving.created_at < period:
            return False
        known = canaries.of_case(session, project_id, study_key)
        if any(canary.tick >= tick or canary.verdict in (None, "slow") for canary in known):
            return False
        unfinished = (RetuneState.QUEUED, RetuneState.RUNNING)
        if retunes.page(session, retunes.Filter(project_id, study_key, states=unfinished), None, 1):
            return False
        able = _able(context, session, row, row.serving)
        if not able:
            return False
        last = {canary.worker_id: canary.created_at for canary in known}
        worker = min(able, key=lambda one: (last.get(one.id, _EPOCH), one.name))
    return _send(context, row, worker.id, tick, "watch")


def _able(context: Context, session: Session, row: BestRow, serving: RecommendationRow) -> list[WorkerRow]:
    """Workers on which the recommendation was measured, as far as fingerprints tell."""
    answer = serving.answer
    found = errands.able(context, session, row.project_id, answer.model, answer.cluster)
    return [worker for worker in found if not matching.changed_fields(worker, serving.study)]


def _send(context: Context, row: BestRow, worker_id: str, tick: int, role: str) -> bool:
    assert row.serving is not None
    name = hashlib.sha256(f"{row.project_id}:{row.study_key}:{tick}:{role}".encode()).hexdigest()[:12]
    now = context.now()
    try:
        with context.db.write() as session:
            held = best.lock(session, row.project_id, row.study_key)
            if held is None or held.serving is None or held.serving_id != row.serving_id:
                return False
            worker = session.get(WorkerRow, worker_id)
            assert worker is not None
            known, earlier = canary_reference.normal(session, held, held.serving, worker_id)
            study = errands.add(
                session,
                f"study-{name}",
                errands.origin(session, held.serving),
                worker.fingerprint_key,
                worker.inventory.nvme_path is not None,
                held.serving.answer.result.best.config,
                Errand(
                    kind="canary",
                    worker_id=worker_id,
                    repeat_below=drift.alarm_below(known, earlier) if known is not None else None,
                    most_runs=drift.MOST_RUNS,
                ),
                Budget(max_trials=1),
                (),
                now,
            )
            session.add(
                CanaryRow(
                    id=f"canary-{name}",
                    project_id=held.project_id,
                    study_key=held.study_key,
                    recommendation_id=held.serving_id,
                    worker_id=worker_id,
                    study_id=study.id,
                    tick=tick,
                    role=role,
                    created_at=now,
                )
            )
    except IntegrityError:
        return False  # another replica began it
    return True


def _judge(context: Context, canary_id: str, study_id: str) -> bool:
    """The verdict on a canary whose study has ended, or whose peer has."""
    peer: tuple[BestRow, str, int] | None = None
    with context.db.write() as session:
        study, now = studies.lock(session, study_id), context.now()
        found = session.get(CanaryRow, canary_id)
        assert found is not None
        row = best.lock(session, found.project_id, found.study_key)
        canary = canaries.lock(session, canary_id)
        if study.state in _UNFINISHED and not _give_up(context, session, canary, study, now):
            return False
        if row is None or row.serving_id != canary.recommendation_id:
            _end(canary, "unmeasured", "what is served was changed meanwhile", now)
            return True
        if canary.verdict is None and not _read(session, canary, study, row, now):
            return True
        if canary.role == "peer":
            return False
        other = _peer(session, canary)
        if other is None:
            others = _able(context, session, row, canary.recommendation)
            able = [worker for worker in others if worker.id != canary.worker_id]
            if able:
                peer = row, able[0].id, canary.tick
            else:
                _drifted(context, session, canary, row, "there is no other worker to compare it with", now)
        elif other.verdict == "normal":
            _fault(session, canary, other, now)
        elif other.verdict is not None:
            _end(other, "drift" if other.verdict == "slow" else other.verdict, other.reason, now)
            _drifted(context, session, canary, row, f"{other.worker.name}: {other.reason}", now)
        else:
            return False
    if peer is not None:
        _send(context, *peer, "peer")
    return True


def _give_up(context: Context, session: Session, canary: CanaryRow, study: StudyRow, now: datetime) -> bool:
    """End a canary whose worker is gone, or is another machine by now; the next period has another."""
    worker = session.get(WorkerRow, canary.worker_id)
    assert worker is not None
    if worker.seen_at >= live_since(context) and matching.may_run(worker, study):
        return False
    moves.end_study(session, study, StudyState.CANCELLED, f"worker {worker.name} is gone, or has changed", now)
    return True


def _read(session: Session, canary: CanaryRow, study: StudyRow, row: BestRow, now: datetime) -> bool:
    """Take in what the study measured; True where it looks slow, and more has to be known."""
    assert study.errand is not None and row.serving is not None
    rows = trials.of_study(session, study.id)
    seen = [study_view.observation(trial, study.match_round) for trial in rows]
    runs = [run for obs in seen for run in (*obs.confirmations, *((obs.measurement,) if obs.measurement else ()))]
    if study.state is not StudyState.COMPLETE or not runs:
        _end(canary, "unmeasured", study.reason, now)
        return False
    canary.tokens_per_s_per_gpu = max(run.tokens_per_s_per_gpu for run in runs)
    known, _ = canary_reference.normal(session, row, row.serving, canary.worker_id)
    canary.change = drift.change(known, canary.tokens_per_s_per_gpu) if known is not None else None
    least = study.errand.repeat_below
    if least is None or canary.tokens_per_s_per_gpu >= least:
        _end(canary, "normal", None, now)
        worker = workers.lock(session, canary.worker_id)
        if worker is not None:
            worker.condition = None
        return False
    said = f"{canary.change:.2f} times the measured speed" if canary.change is not None else "slow"
    canary.verdict, canary.reason = "slow", f"{said}, the fastest of {len(runs)} runs"
    return True


def _peer(session: Session, canary: CanaryRow) -> CanaryRow | None:
    found = canaries.of_case(session, canary.project_id, canary.study_key)
    return next((row for row in found if row.role == "peer" and row.tick == canary.tick), None)


def _fault(session: Session, canary: CanaryRow, peer: CanaryRow, now: datetime) -> None:
    """The worker alone is slow."""
    reason = f"{canary.reason}; {peer.worker.name} is as fast as ever with the same"
    _end(canary, "worker", reason, now)
    worker = workers.lock(session, canary.worker_id)
    if worker is not None:
        worker.condition = f"slower than it was: {reason} (canary of {now:%Y-%m-%d %H:%M} UTC)"
        log.warning("worker is slow: %s", reason, extra={"worker": worker.name, "canary": canary.id})


def _drifted(context: Context, session: Session, canary: CanaryRow, row: BestRow, compared: str, now: datetime) -> None:
    """The case is slower than it was: say so, and have it measured anew."""
    assert row.serving is not None
    reason = f"{canary.worker.name}: {canary.reason}; {compared}"
    _end(canary, "drift", reason, now)
    note_decision(session, row, row.serving, "regression", SERVICE, reason, now)
    told(session, "best.regression", row.serving, now, reason=reason, change=canary.change)
    retune_queue.request(
        session, project_id=row.project_id, study_key=row.study_key, cause="drift", not_before=now, now=now
    )
    log.warning("what is served has become slower: %s", reason, extra={"study_key": row.study_key})


def _end(canary: CanaryRow, verdict: str, reason: str | None, now: datetime) -> None:
    canary.verdict, canary.reason, canary.ended_at = verdict, reason, now
