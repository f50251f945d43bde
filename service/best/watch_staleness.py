"""Compare recommendations with the present workers' hardware and software: mark stale recommendations, and announce a
change after the debounce period.

Safe in any number of replicas: a row is written only if it is as it was read, so one replica writes it.
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
from shardtune.db.tables.fingerprint_periods import FingerprintPeriodRow
from shardtune.service.process.background import run_every, sum_unlocked
from shardtune.service.process.context import Context
from shardtune.service.recommendations.record import SERVICE, record_decision
from shardtune.service.retuning import queue
from shardtune.service.retuning.records import end_retune
from shardtune.service.workers import hardware_shape
from shardtune.service.workers.registry import live_since
from shardtune.tuner.freshness.staleness import Machine, StoredFreshness, TargetMeasurement, assess, update_marks

log = logging.getLogger(__name__)

# A change counts once it has lasted for the debounce period, so time alone can make one due.
_MAX_INTERVAL_S = 30.0
"""Maximum seconds between two checks for stale recommendations, if neither workers nor recommendations change."""


@dataclass(frozen=True)
class _MarkChange:
    """Planned change to the columns of a recommendation's row that say whether the recommendation is fresh or stale."""

    case: TargetFreshness
    was: StoredFreshness
    to: StoredFreshness
    ranking_state: TargetMeasurement

    @property
    def is_announced(self) -> bool:
        return self.to.announced_at is not None and self.to.announced_at != self.was.announced_at


def mark_stale_and_fresh(context: Context) -> int:
    """Mark recommendations as stale or fresh according to the present workers, and announce changes that have lasted
    for the debounce period (a setting). Returns the number of changed rows.
    """
    with context.db.read() as session:
        moves = list(_find_changes(context, session))
    return sum_unlocked(moves, partial(_apply_change, context), lambda move: move.case.target_key)


async def keep_watching(context: Context) -> None:
    """Repeat the check for stale recommendations until cancelled."""
    state: object = None
    min_interval_s = min(_MAX_INTERVAL_S, context.settings.fingerprint_debounce_s / 10)
    checked_s = -min_interval_s

    async def step() -> None:
        nonlocal state, checked_s
        now = await run_in_threadpool(_fleet_state, context)
        # With tens of thousands of targets a full check is expensive, so a cheap query first tells whether any
        # fingerprint changed.
        if now == state and time.monotonic() - checked_s < min_interval_s:
            return
        await run_in_threadpool(mark_stale_and_fresh, context)
        state, checked_s = now, time.monotonic()

    await run_every(context.settings.fingerprint_check_s, holding_recommendations_against_workers=step)


def _fleet_state(context: Context) -> object:
    with context.db.read() as session:
        live_from = live_since(context)
        return fingerprints.fleet_state(session, min(_gone_since(context), live_from), live_from)


def suitable_machines(
    context: Context, periods: Sequence[FingerprintPeriodRow], project_id: str, cluster: Cluster
) -> tuple[Machine, ...]:
    """Workers with the hardware of a cluster that run the studies of a project."""
    live_from = live_since(context)
    return tuple(
        Machine(
            period.fingerprint.value, period.since, period.worker.seen_at >= live_from and not period.worker.is_draining
        )
        for period in periods
        if period.worker.project_id in (None, project_id)
        and hardware_shape.has_same_shape(period.worker.offer.cluster, cluster)
    )


def current_fleet(context: Context, session: Session) -> Sequence[FingerprintPeriodRow]:
    """Workers whose fingerprints (hardware and software versions) decide whether a recommendation is stale: live
    workers, and workers that fell silent a limited time ago.
    """
    # A reboot must not make stale what the worker will run again.
    return fingerprints.fleet(session, min(_gone_since(context), live_since(context)))


def _gone_since(context: Context) -> datetime:
    return context.now() - timedelta(seconds=context.settings.fingerprint_gone_s)


def _find_changes(context: Context, session: Session) -> Iterator[_MarkChange]:
    periods, cases = current_fleet(context, session), fingerprints.target_freshness(session)
    if not periods:
        return
    values = fingerprints.values(session, {case.fingerprint_key for case in cases})
    assessed: dict[tuple[str, str, str], TargetMeasurement | None] = {}
    debounce = timedelta(seconds=context.settings.fingerprint_debounce_s)
    ranking_states = []
    for case in cases:
        group_key = (case.project_id, case.fingerprint_key, case.cluster_json)
        # Assessed once for all targets of one project, fingerprint and cluster, which share the answer.
        if group_key not in assessed:
            cluster = Cluster.model_validate_json(case.cluster_json)
            matching_machines = suitable_machines(context, periods, case.project_id, cluster)
            assessed[group_key] = assess(values[case.fingerprint_key], cluster.nodes, matching_machines)
        ranking_states.append((case, assessed[group_key]))
    keys_in_use = _keys_in_use(ranking_states)
    for case, ranking_state in ranking_states:
        if ranking_state is None:
            continue
        marks_before = _marks(case)
        marks_after = update_marks(
            marks_before,
            ranking_state,
            keys_in_use[case.project_id, case.target_key_without_fingerprint] == case.target_key,
            context.now(),
            debounce,
        )
        if marks_after != marks_before:
            yield _MarkChange(case, marks_before, marks_after, ranking_state)


def _keys_in_use(
    ranking_states: Sequence[tuple[TargetFreshness, TargetMeasurement | None]],
) -> dict[tuple[str, str], str]:
    """Return the target key of the recommendation that a request for each tuning target (model, workload, cluster)
    would get: the key of the newest fresh recommendation, else of the newest stale one.

    The result maps (project, target key without its fingerprint) to the full target key. `ranking_states` are sorted
    newest first.
    """
    best_by_target: dict[tuple[str, str], tuple[bool, str]] = {}
    for case, ranking_state in ranking_states:
        is_fresh = case.freshness == Freshness.FRESH if ranking_state is None else ranking_state.changed_at is None
        target = (case.project_id, case.target_key_without_fingerprint)
        if target not in best_by_target or (is_fresh and not best_by_target[target][0]):
            best_by_target[target] = (is_fresh, case.target_key)
    return {target: key for target, (_, key) in best_by_target.items()}


def _marks(case: TargetFreshness) -> StoredFreshness:
    return StoredFreshness(
        case.freshness, case.changed_fields, case.stale_since, case.stale_announced_at, case.stale_announced_for
    )


def _apply_change(context: Context, move: _MarkChange) -> bool:
    moment, case = context.now(), move.case
    with context.db.write() as session:
        row = best.lock(session, case.project_id, case.target_key)
        # Written only at the version that was read: another replica may have written the same change.
        if row is None or row.version != case.version or row.recommended is None:
            return False
        row.freshness, row.changed_fields = move.to.freshness, move.to.changed_fields
        row.stale_since, row.stale_announced_at = move.to.stale_since, move.to.announced_at
        row.stale_announced_for = move.to.announced_for
        row.version += 1
        if move.is_announced:
            _announce(session, row, move.ranking_state, moment)
        elif move.was.announced_at is not None and move.to.freshness == Freshness.FRESH:
            _retract(context, session, row, moment)
    extra = {"target_key": case.target_key, "fields": move.to.changed_fields, "is_announced": move.is_announced}
    log.info("best configuration is %s", move.to.freshness, extra=extra)
    return True


def _announce(session: Session, row: TuningTargetRow, ranking_state: TargetMeasurement, now: datetime) -> None:
    """Announce that a recommendation has become stale: record this in the history, notify webhooks, and request that
    it is measured again, if a schedule or the project's policy asks for this.
    """
    assert row.recommended is not None
    described = "; ".join(change.describe() for change in ranking_state.changes if change.effect == Effect.STALE)
    record_decision(session, row, row.recommended, DecisionAction.STALE, SERVICE, described, now)
    data = {
        "project_id": row.project_id,
        "target_key": row.target_key,
        "recommendation_id": row.recommended.id,
        "changed_fields": list(ranking_state.stale_fields),
        "changes": [change.model_dump(mode="json") for change in ranking_state.changes],
    }
    outbox.notify(
        session,
        project_id=row.project_id,
        study_id=row.recommended.study_id,
        kind=EventType.BEST_STALE,
        data=data,
        now=now,
    )
    queue.request_retune(
        session,
        project_id=row.project_id,
        target_key=row.target_key,
        cause=RetuneCause.FINGERPRINT,
        changes=ranking_state.stale_changes,
        not_before=now,
        now=now,
    )


def _retract(context: Context, session: Session, row: TuningTargetRow, now: datetime) -> None:
    """Withdraw the announcement that a recommendation is stale, because the workers have undone the change. The
    repeated measurement that was requested for that reason is dropped, unless it already runs.
    """
    assert row.recommended is not None
    record_decision(
        session,
        row,
        row.recommended,
        DecisionAction.FRESH,
        SERVICE,
        "the hardware and software of the measurement are back",
        now,
    )
    waiting = retunes.unfinished(session, row.project_id, row.target_key)
    if waiting is not None and waiting.state is RetuneState.QUEUED and waiting.cause == RetuneCause.FINGERPRINT:
        end_retune(context, session, waiting, RetuneOutcome.SKIPPED, "the machines have changed back")
