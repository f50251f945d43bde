"""Renew leases, and finish them with workers' reports.

Queries are in db.queries.leases; service.lifecycle.outcomes decides what the end of a run means; service.leasing.claim
leases runs.
"""

from datetime import timedelta

from sqlalchemy.orm import Session

from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import Heartbeat, HeartbeatAnswer, Report, ReportAnswer
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.queries import leases, studies, workers
from shardtune.db.tables.trials import AttemptRow, RunRow
from shardtune.service.http.errors import Conflict, NotFound, invalid
from shardtune.service.leasing import host_exclusivity, preemption, quiet_waits
from shardtune.service.lifecycle import advance, charges, outcomes, traces
from shardtune.service.lifecycle.locked_run import lock_run
from shardtune.service.lifecycle.outcomes import JudgedEnd
from shardtune.service.planning import study_snapshot
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.process.context import Context
from shardtune.service.workers.protocol_versions import check_protocol
from shardtune.service.workers.registry import worker_of_session

_RESULT_FIELDS = ("measurement", "model_summary", "resume_check", "diagnosis", "rehearsal", "failure")
_RESULT_FIELD = {
    RunPurpose.MODEL_SUMMARY: "model_summary",
    RunPurpose.RESUME_CHECK: "resume_check",
    RunPurpose.REHEARSAL: "rehearsal",
    RunPurpose.TRACE: "diagnosis",
}
"""Name of the field of a report that contains the result, by the purpose of the run. Runs of all other purposes
report a measurement.
"""


def renew(context: Context, run_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
    """Extend a worker's lease and store the progress of its run; the response tells the worker to stop if the run was
    taken away from it.
    """
    check_protocol(heartbeat.protocol_version)
    now, lease_s = context.now(), context.settings.lease_s
    if context.settings.retune_yields == "at_once":
        preemption.preempt_if_needed(context, run_id, heartbeat.session)
    values: dict[str, object] = {"lease_until": now + timedelta(seconds=lease_s)}
    with context.db.write() as session:
        if heartbeat.progress is not None:
            values["progress"] = _with_earlier_wait(session, run_id, heartbeat.attempt, heartbeat.progress)
        # A key bound to a project may renew only its own workers' leases; an unbound key sees every session, so the
        # query is saved.
        if context.principal.project_id is not None:
            worker_of_session(context, session, heartbeat.session)
        if leases.write_guarded(session, run_id, heartbeat.attempt, heartbeat.session, **values):
            is_draining = workers.note_seen(session, heartbeat.session, now)
            return HeartbeatAnswer(action="continue", lease_s=lease_s, is_draining=is_draining)
        # The guarded update changed nothing: either the run is unknown, or its lease went to another attempt.
        # Distinguish them only now, since heartbeats that succeed are by far the most frequent request.
        if not sees_run(context, session, leases.get(session, run_id)):
            raise NotFound("unknown_run", f"run {run_id} does not exist; stop its ranks and ask for a lease")
        attempt = leases.attempt_of(session, run_id, heartbeat.attempt)
    return HeartbeatAnswer(action="stop", reason=why_lost(attempt, heartbeat.session), lease_s=lease_s)


def _with_earlier_wait(session: Session, run_id: str, attempt: int, progress: Progress) -> Progress:
    """Progress to store: as reported, or with the wait of the run's earlier attempts if the worker reports none."""
    # A study whose waiting time is used up orders no wait, so that its workers do not know of earlier ones. Read only
    # for repeated runs: heartbeats are by far the most frequent request.
    if attempt == 1 or progress.waited_s is not None:
        return progress
    run = leases.get(session, run_id)
    return progress.model_copy(update={"waited_s": quiet_waits.waited_so_far(run.progress if run else None)})


def sees_run(context: Context, session: Session, run: RunRow | None) -> bool:
    """Whether a run exists and belongs to one of the sender's projects."""
    # The same answer for another project's run as for none: an id must not reveal what others own.
    if run is None or context.principal.project_id is None:
        return run is not None
    study = studies.get(session, run.study_id)
    return study is not None and context.principal.sees(study.project_id)


def apply_report(context: Context, run_id: str, report: Report) -> ReportAnswer:
    """Store a worker's report of the end of an attempt. Repeating the same report changes nothing.

    Raises:
        NotFound: the run does not exist.
        Conflict: the lease is not the sender's, or the attempt was reported with another content.
        Invalid: the report does not carry exactly one result of the run's kind.
    """
    check_protocol(report.protocol_version)
    # Explained before the transaction, so that nobody waits for the study's row while remedies are predicted.
    explained_diagnosis = (
        traces.explain_diagnosis(context, run_id, report.diagnosis) if report.diagnosis is not None else None
    )
    with context.db.write() as session:
        if context.principal.project_id is not None:
            worker_of_session(context, session, report.session)
        locked_run = lock_run(session, run_id)
        if locked_run is None or not context.principal.sees(locked_run.study.project_id):
            raise NotFound("unknown_run", f"run {run_id} does not exist; drop the report and ask for a lease")
        # A worker repeats a report whose answer it did not get. The stored hash of the first report tells a repetition
        # from a different report of the same attempt.
        attempt, key = locked_run.attempt(report.attempt), report.content_key()
        if _is_repeated_report(attempt, report, key):
            return ReportAnswer(applied=False)
        _check_is_leaseholder(locked_run.run, attempt, report)
        _check_single_result(locked_run.run, report)
        # With the snapshot before this report, what was rejected and what validation cost need not be read again.
        snapshot_before = context.planner_cache.snapshot(locked_run.study.id, locked_run.study.version)
        if snapshot_before is not None:
            locked_run.rejected = snapshot_before.rejected
        if report.waited_s is not None:
            locked_run.run.progress = Progress(phase="finishing", waited_s=report.waited_s)
        assert attempt is not None, "checked with the lease"
        now = context.now()
        charged = charges.reported(locked_run.study, locked_run.run, attempt, report.gpu_seconds, now)
        judged_end = _judged_end(report, key, explained_diagnosis, charged)
        outcomes.apply_end(
            session, locked_run, host_exclusivity.with_co_tenants(session, locked_run.run, judged_end), now
        )
        confirming_s = (
            None if snapshot_before is None else _validation_gpu_seconds(snapshot_before, locked_run.run, charged)
        )
        snapshot = study_snapshot.read_study(
            session, locked_run.study, locked_run.trials, locked_run.rejected, confirming_s
        )
        snapshot, continues_block = advance.begin_next(context, session, locked_run, snapshot)
    context.metrics.count_end(locked_run.run.purpose, attempt.end or "unknown", charged)
    context.planner_cache.keep_snapshot(snapshot)
    # The worker's next request takes the next run of the block directly, without a look at other studies.
    if continues_block:
        context.planner_cache.note_begun_block(report.session, locked_run.study.id)
    # After the commit: ending a search or a study takes transactions of its own. If the process is killed before,
    # `advance.catch_up` takes these steps at the next start.
    advance.advance(context, locked_run.study.id, snapshot)
    return ReportAnswer(applied=True)


def _validation_gpu_seconds(before: StudySnapshot, run: RunRow, charged: float) -> float:
    """GPU-seconds of all final comparisons (paired runs that decide) of a study so far: those in the snapshot from
    before the present report, and those that the report adds.
    """
    # A query would make SQLAlchemy flush the pending changes first, and the rest again later.
    _, spent_s = before.final_comparison_cost
    return spent_s + (charged if run.purpose == RunPurpose.VALIDATION else 0.0)


def _is_repeated_report(attempt: AttemptRow | None, report: Report, content_key: str) -> bool:
    if attempt is None or attempt.worker_session != report.session or attempt.report_key is None:
        return False
    if attempt.report_key != content_key:
        raise Conflict(
            "report_differs",
            f"attempt ({report.attempt}) was reported before with another content; the first report stands",
        )
    return True


def _check_is_leaseholder(run: RunRow, attempt: AttemptRow | None, report: Report) -> None:
    is_live = run.state is TrialState.RUNNING and run.attempt == report.attempt and run.worker_session == report.session
    if not is_live:
        reason = why_lost(attempt, report.session)
        raise Conflict("lease_lost", f"attempt ({report.attempt}) of {run.id}: {reason}; nothing was changed")


def _check_single_result(run: RunRow, report: Report) -> None:
    """Check that a report contains exactly one result, and that this result is of the kind that the run's purpose
    requires.
    """
    expected = _RESULT_FIELD.get(run.purpose, "measurement")
    reported = [name for name in _RESULT_FIELDS if getattr(report, name) is not None]
    if len(reported) != 1 or reported[0] not in (expected, "failure"):
        raise invalid(
            ", ".join(_RESULT_FIELDS),
            ", ".join(reported) or None,
            f"a report of a {run.purpose} run carries either {expected} or failure, but this has "
            f"({', '.join(reported) or 'neither'}); send exactly one",
        )


def _judged_end(report: Report, key: str, diagnosis: Diagnosis | None, charged: float) -> JudgedEnd:
    return JudgedEnd(
        gpu_seconds=charged,
        measurement=report.measurement,
        model_summary=report.model_summary,
        resume_check=report.resume_check,
        rehearsal=report.rehearsal,
        diagnosis=diagnosis,
        failure=report.failure,
        # `worker_lost` from the worker itself means that it shuts down in good order and hands the run back.
        is_release=report.failure is not None and report.failure.kind is FailureKind.WORKER_LOST,
        log_tail=report.log_tail,
        report_key=key,
    )


def why_lost(attempt: AttemptRow | None, worker_session: str) -> str:
    """Reason why a worker session no longer has its lease of a run, in words for the worker's log."""
    if attempt is None or attempt.worker_session != worker_session:
        return "the lease belongs to another session"
    if attempt.end == TrialState.CANCELLED.value:
        return "cancelled"
    # Only the service itself ends an attempt as these while a worker still holds it; it says why.
    explained = attempt.failure is not None and attempt.report_key is None
    return f"lease lost: {attempt.failure.message if explained and attempt.failure else f'the attempt has ended ({attempt.end})'}"
