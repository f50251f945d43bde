"""Hold what is served against the machines there are: mark what is stale, and announce a change once it has settled.

Safe in any number of replicas: a row is written only while it is as it was read, so one of them writes it.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.machines.fingerprints import Effect, Freshness
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.recommendations.best import DecisionAction
from shardtune.api_schemas.retuning.retunes import RetuneCause, RetuneOutcome, RetuneState
from shardtune.db import outbox
from shardtune.db.queries import best, fingerprints, retunes
from shardtune.db.queries.fingerprints import TargetFreshness
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.fingerprints import FingerprintPeriodRow
from shardtune.service.process.background import count_done, run_every
from shardtune.service.process.context import Context
from shardtune.service.recommendations.record import SERVICE, note_decision
from shardtune.service.retuning import queue
from shardtune.service.retuning.records import finish
from shardtune.service.workers import compatibility
from shardtune.service.workers.registry import live_since
from shardtune.tuner.freshness.staleness import Machine, Marks, TargetMeasurement, assess, marked

log = logging.getLogger(__name__)

_MOST_BETWEEN_LOOKS_S = 30.0
"""Where nothing changed: a change counts once it has lasted, so time alone can make something due."""


@dataclass(frozen=True)
class _Move:
    """What is to become of one row."""

    case: TargetFreshness
    was: Marks
    to: Marks
    ranking_state: TargetMeasurement

    @property
    def is_told(self) -> bool:
        return self.to.announced_at is not None and self.to.announced_at != self.was.announced_at


def watch(context: Context) -> int:
    """Mark what the fleet of now makes stale or fresh, and announce what has settled; returns how many rows changed."""
    with context.db.read() as session:
        moves = list(_moves(context, session))
    return count_done(moves, partial(_make, context), lambda move: move.case.target_key)


async def keep_watching(context: Context) -> None:
    """Watch until cancelled; with tens of thousands of cases a look is dear, so it is taken where something changed."""
    state: object = None
    between_s = min(_MOST_BETWEEN_LOOKS_S, context.settings.fingerprint_debounce_s / 10)
    looked_s = -between_s

    async def step() -> None:
        nonlocal state, looked_s
        now = await run_in_threadpool(_state, context)
        if now == state and time.monotonic() - looked_s < between_s:
            return
        await run_in_threadpool(watch, context)
        state, looked_s = now, time.monotonic()

    await run_every(context.settings.fingerprint_check_s, holding_recommendations_against_workers=step)


def _state(context: Context) -> object:
    with context.db.read() as session:
        live = live_since(context)
        return fingerprints.state(session, min(_gone_since(context), live), live)


def machines(
    context: Context, periods: Sequence[FingerprintPeriodRow], project_id: str, cluster: Cluster
) -> tuple[Machine, ...]:
    """The workers that have the hardware of a cluster and run the project's studies."""
    live = live_since(context)
    return tuple(
        Machine(period.fingerprint.value, period.since, period.worker.seen_at >= live and not period.worker.is_draining)
        for period in periods
        if period.worker.project_id in (None, project_id)
        and compatibility.same_shape(period.worker.offer.cluster, cluster)
    )


def fleet(context: Context, session: Session) -> Sequence[FingerprintPeriodRow]:
    """The workers that count: live ones, and silent ones for a while."""
    return fingerprints.fleet(session, min(_gone_since(context), live_since(context)))


def _gone_since(context: Context) -> datetime:
    return context.now() - timedelta(seconds=context.settings.fingerprint_gone_s)


def _moves(context: Context, session: Session) -> Iterator[_Move]:
    periods, cases = fleet(context, session), fingerprints.cases(session)
    if not periods:
        return
    values = fingerprints.values(session, {case.fingerprint_key for case in cases})
    known: dict[tuple[str, str, str], TargetMeasurement | None] = {}
    debounce = timedelta(seconds=context.settings.fingerprint_debounce_s)
    ranking_states = []
    for case in cases:
        kind = (case.project_id, case.fingerprint_key, case.cluster_json)
        if kind not in known:
            cluster = Cluster.model_validate_json(case.cluster_json)
            able = machines(context, periods, case.project_id, cluster)
            known[kind] = assess(values[case.fingerprint_key], cluster.nodes, able)
        ranking_states.append((case, known[kind]))
    asked = _asked(ranking_states)
    for case, ranking_state in ranking_states:
        if ranking_state is None:
            continue
        was = _marks(case)
        to = marked(
            was,
            ranking_state,
            asked[case.project_id, case.target_key_without_fingerprint] == case.target_key,
            context.now(),
            debounce,
        )
        if to != was:
            yield _Move(case, was, to, ranking_state)


def _asked(ranking_states: Sequence[tuple[TargetFreshness, TargetMeasurement | None]]) -> dict[tuple[str, str], str]:
    """By project and shape: the key of what whoever asks for the case is given, the newest fresh one before stale ones.

    The cases come newest first.
    """
    found: dict[tuple[str, str], tuple[bool, str]] = {}
    for case, ranking_state in ranking_states:
        is_fresh = case.freshness == Freshness.FRESH if ranking_state is None else ranking_state.changed_at is None
        shape = (case.project_id, case.target_key_without_fingerprint)
        if shape not in found or (is_fresh and not found[shape][0]):
            found[shape] = (is_fresh, case.target_key)
    return {shape: key for shape, (_, key) in found.items()}


def _marks(case: TargetFreshness) -> Marks:
    return Marks(
        case.freshness, case.changed_fields, case.stale_since, case.stale_announced_at, case.stale_announced_for
    )


def _make(context: Context, move: _Move) -> bool:
    now, case = context.now(), move.case
    with context.db.write() as session:
        row = best.lock(session, case.project_id, case.target_key)
        if row is None or row.version != case.version or row.serving is None:
            return False
        row.freshness, row.changed_fields = move.to.freshness, move.to.changed_fields
        row.stale_since, row.stale_announced_at = move.to.stale_since, move.to.announced_at
        row.stale_announced_for = move.to.announced_for
        row.version += 1
        if move.is_told:
            _announce(session, row, move.ranking_state, now)
        elif move.was.announced_at is not None and move.to.freshness == Freshness.FRESH:
            _take_back(context, session, row, now)
    extra = {"target_key": case.target_key, "fields": move.to.changed_fields, "is_told": move.is_told}
    log.info("best configuration is %s", move.to.freshness, extra=extra)
    return True


def _announce(session: Session, row: TuningTargetRow, ranking_state: TargetMeasurement, now: datetime) -> None:
    """The history, webhooks, and a retune, if schedules and project have it so."""
    assert row.serving is not None
    described = "; ".join(change.describe() for change in ranking_state.changes if change.effect == Effect.STALE)
    note_decision(session, row, row.serving, DecisionAction.STALE, SERVICE, described, now)
    data = {
        "project_id": row.project_id,
        "target_key": row.target_key,
        "recommendation_id": row.serving.id,
        "changed_fields": list(ranking_state.stale_fields),
        "changes": [change.model_dump(mode="json") for change in ranking_state.changes],
    }
    outbox.notify(
        session, project_id=row.project_id, study_id=row.serving.study_id, kind=EventType.BEST_STALE, data=data, now=now
    )
    queue.request(
        session,
        project_id=row.project_id,
        target_key=row.target_key,
        cause=RetuneCause.FINGERPRINT,
        changes=ranking_state.stale_changes,
        not_before=now,
        now=now,
    )


def _take_back(context: Context, session: Session, row: TuningTargetRow, now: datetime) -> None:
    """The machines have changed back: a retune that has not begun for that reason is not wanted any more."""
    assert row.serving is not None
    note_decision(
        session,
        row,
        row.serving,
        DecisionAction.FRESH,
        SERVICE,
        "the hardware and software of the measurement are back",
        now,
    )
    waiting = retunes.unfinished(session, row.project_id, row.target_key)
    if waiting is not None and waiting.state is RetuneState.QUEUED and waiting.cause == RetuneCause.FINGERPRINT:
        finish(context, session, waiting, RetuneOutcome.SKIPPED, "the machines have changed back")
