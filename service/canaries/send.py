"""Send canaries (repeated runs of recommended configurations): decide when one is due and which worker runs it.
service.canaries.judge judges the results.

Each canary belongs to a moment (the start of a period, or a schedule's tick), so that any number of replicas sends it
only once.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.retuning.canaries import CanaryRole, CanaryVerdict
from shardtune.api_schemas.retuning.retunes import OPEN_RETUNE_STATES
from shardtune.api_schemas.retuning.schedules import Trigger
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.system_studies import SystemStudy, SystemStudyKind
from shardtune.db.queries import best, canaries, retunes, schedules
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.canaries import CanaryRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.canaries import reference
from shardtune.service.process.context import Context
from shardtune.service.retuning import system_studies
from shardtune.service.retuning.target_selection import includes
from shardtune.service.workers import compatibility, protocol_limits
from shardtune.tuner.freshness import drift

_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Sent:
    """Result of an attempt to send a canary (repeated run of a recommended configuration): the canary was created."""


@dataclass(frozen=True)
class NotSent:
    """Result of an attempt to send a canary (repeated run of a recommended configuration): none was created for this
    moment.
    """

    reason: str


def watched_targets(context: Context, session: Session) -> list[tuple[str, str, float | None]]:
    """Return the recommendations that canaries (repeated runs) watch: each with its project, its target key and the
    period of its canaries. If the period is None, only the project's drift schedules send its canaries.
    """
    period_s, drifts = context.settings.canary_period_s, schedules.with_cron(session, Trigger.DRIFT)
    watched_targets = []
    for row in canaries.fresh_targets(session) if period_s or drifts else ():
        covering = [
            schedule
            for schedule in drifts
            if schedule.project_id == row.project_id and includes(session, row, schedule.spec.targets)
        ]
        if any(not schedule.is_paused for schedule in covering) or (period_s and not covering):
            watched_targets.append((row.project_id, row.target_key, None if covering else period_s))
    return watched_targets


def begin_if_due(context: Context, project_id: str, target_key: str, period_s: float | None) -> bool:
    """Send the canary of a recommendation if one is due now; returns whether a canary was sent. A canary runs the
    recommended configuration again, to check its speed.

    A recommendation with too few runs for a reference speed gets its first canary at once, which completes the
    reference. With `period_s` None, this function sends no later canary.
    """
    with context.db.read() as session:
        row = best.get_target(session, project_id, target_key)
        moment = _due_moment(context, session, row, period_s) if row is not None else None
        # Checked without locks first; a watched target is looked at every few seconds, and rarely due.
        if row is None or moment is None or isinstance(_choose_worker(context, session, row, moment), NotSent):
            return False
    try:
        with context.db.write() as session:
            return isinstance(send_canary(context, session, project_id, target_key, moment), Sent)
    except IntegrityError:
        return False  # Another replica sent it.


def send_canary(
    context: Context, session: Session, project_id: str, target_key: str, moment: datetime
) -> Sent | NotSent:
    """Send the canary (repeated run of a recommended configuration) that is due at a moment for a tuning target
    (model, workload, cluster), in the caller's transaction.

    Raises:
        IntegrityError: another replica has just sent this canary.
    """
    # Not locked: if another recommendation becomes current meanwhile, service.canaries.judge notices it.
    row = best.get_target(session, project_id, target_key)
    if row is None:
        return NotSent("nothing is recommended")
    worker = _choose_worker(context, session, row, moment)
    if isinstance(worker, NotSent):
        return worker
    _insert_canary(context, session, row, worker, _seconds(moment), CanaryRole.WATCH)
    return Sent()


def send_peer(context: Context, canary_id: str, worker_id: str) -> None:
    """Repeat a canary (run of a recommended configuration to check its speed) on a second worker, because it seems
    slow. This tells a slow worker from a slow configuration.
    """
    try:
        with context.db.write() as session:
            canary, worker = session.get(CanaryRow, canary_id), session.get(WorkerRow, worker_id)
            assert canary is not None and worker is not None
            row = best.get_target(session, canary.project_id, canary.target_key)
            if row is not None and row.recommended_id == canary.recommendation_id:
                _insert_canary(context, session, row, worker, canary.tick, CanaryRole.PEER)
    except IntegrityError:
        pass  # Another replica sent it.


def suitable_workers(
    context: Context, session: Session, row: TuningTargetRow, recommended: RecommendationRow
) -> list[WorkerRow]:
    """Live workers that can run a recommendation's canary (repeated run) so that speeds are comparable. They have a
    fingerprint (hardware and software versions) on which the recommendation was measured, and read the run's protocol
    version.
    """
    return [
        worker
        for worker in _workers_of_fingerprint(context, session, row, recommended)
        if why_unreadable(recommended, worker) is None
    ]


def why_unreadable(recommended: RecommendationRow, worker: WorkerRow) -> str | None:
    """Reason why a worker's protocol version cannot express the canary (repeated run) of a recommendation; None if it
    can.
    """
    answer = recommended.answer
    return protocol_limits.why_not_repeatable(
        answer.workload,
        answer.result.best.config,
        worker.protocol_version,
        has_short_steps=recommended.study.parity_samples is not None,
    )


def _workers_of_fingerprint(
    context: Context, session: Session, row: TuningTargetRow, recommended: RecommendationRow
) -> list[WorkerRow]:
    """Live workers whose fingerprint (hardware and software versions) is one on which the recommendation was
    measured.
    """
    answer = recommended.answer
    live_workers = system_studies.suitable_workers(context, session, row.project_id, answer.model, answer.cluster)
    return [worker for worker in live_workers if not compatibility.changed_fields(worker, recommended.study)]


def _due_moment(context: Context, session: Session, row: TuningTargetRow, period_s: float | None) -> datetime | None:
    """Time of the canary (repeated run of a recommended configuration) that is due now for a recommendation; None if
    none is due.
    """
    recommended, now = row.recommended, context.now()
    if recommended is None:
        return None
    if (
        recommended.answer.result.best.runs < drift.FEWEST
        and reference.reference_of(session, row, recommended).missing_runs
    ):
        target_canaries = canaries.of_target(session, row.project_id, row.target_key)
        if not any(canary.recommendation_id == recommended.id for canary in target_canaries):
            return recommended.created_at
    if period_s is None or now - recommended.created_at < timedelta(seconds=period_s):
        return None
    return now - (now - _EPOCH) % timedelta(seconds=period_s)


def _choose_worker(context: Context, session: Session, row: TuningTargetRow, moment: datetime) -> WorkerRow | NotSent:
    """Choose the worker for the canary (repeated run of a recommended configuration) of a moment: the one whose last
    canary is oldest. If no canary can run, returns the reason instead.
    """
    if row.recommended is None or row.superseded_by is not None or row.freshness != Freshness.FRESH:
        return NotSent("the recommendation is not fresh")
    target_canaries = canaries.of_target(session, row.project_id, row.target_key)
    if any(canary.verdict in (None, CanaryVerdict.SLOW) for canary in target_canaries):
        return NotSent("its last canary has not ended")
    if _seconds(moment) < _seconds(row.recommended.created_at) or any(
        canary.tick >= _seconds(moment) for canary in target_canaries
    ):
        return NotSent("it was measured since")
    if retunes.page(session, retunes.RetuneFilter(row.project_id, row.target_key, states=OPEN_RETUNE_STATES), None, 1):
        return NotSent("a retune of it is unfinished")
    live_workers = _workers_of_fingerprint(context, session, row, row.recommended)
    if not live_workers:
        return NotSent("no live worker has the fingerprint it was measured on")
    reasons = {worker: why_unreadable(row.recommended, worker) for worker in live_workers}
    suitable = [worker for worker in live_workers if reasons[worker] is None]
    if not suitable:
        return NotSent(f"no live worker can read its run: {live_workers[0].name} {reasons[live_workers[0]]}")
    last_canary_at = {canary.worker_id: canary.created_at for canary in target_canaries}
    return min(suitable, key=lambda worker: (last_canary_at.get(worker.id, _EPOCH), worker.name))


def _insert_canary(
    context: Context, session: Session, row: TuningTargetRow, worker: WorkerRow, tick: int, role: CanaryRole
) -> None:
    assert row.recommended is not None
    # The id follows from target, moment and role, so a second replica violates the primary key instead of adding
    # another.
    name = hashlib.sha256(f"{row.project_id}:{row.target_key}:{tick}:{role}".encode()).hexdigest()[:12]
    now, canary_reference = context.now(), reference.reference_of(session, row, row.recommended, worker.id)
    system_study = SystemStudy(
        kind=SystemStudyKind.CANARY,
        worker_id=worker.id,
        repeat_below=drift.alarm_below(canary_reference.reference, canary_reference.worker_speeds)
        if canary_reference.reference is not None
        else None,
        most_runs=drift.MOST_RUNS if canary_reference.reference is not None else canary_reference.missing_runs,
    )
    study = system_studies.add_system_study(
        session,
        f"study-{name}",
        system_studies.search_behind(session, row.recommended),
        worker.fingerprint_key,
        row.recommended.answer.result.best.config,
        system_study,
        Budget(max_trials=1),
        (),
        now,
    )
    # Like is compared with like: the reference speeds are those of the recommendation's own runs.
    study.parity_samples = row.recommended.study.parity_samples
    session.add(
        CanaryRow(
            id=f"canary-{name}",
            project_id=row.project_id,
            target_key=row.target_key,
            recommendation_id=row.recommended_id,
            worker_id=worker.id,
            study_id=study.id,
            tick=tick,
            role=role,
            created_at=now,
        )
    )
    session.flush()


def _seconds(moment: datetime) -> int:
    """Whole seconds from a fixed epoch to a moment. They number the canaries (repeated runs of recommended
    configurations), so that canaries of all periods and schedules have one order.
    """
    return int((moment - _EPOCH).total_seconds())
