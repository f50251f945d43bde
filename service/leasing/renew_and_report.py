"""Renew and finish leases.

Queries live in db.queries.leases; what an end means lives in service.lifecycle.outcomes; who is given what in service.leasing.claim.
"""

from datetime import timedelta

from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import Heartbeat, HeartbeatAnswer, Report, ReportAnswer
from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.queries import leases, workers
from shardtune.db.tables.studies import AttemptRow, RunRow
from shardtune.service.http.errors import Conflict, NotFound, invalid
from shardtune.service.leasing import host_exclusivity, preemption
from shardtune.service.lifecycle import advance, outcomes, traces
from shardtune.service.lifecycle.locked_run import hold
from shardtune.service.lifecycle.outcomes import JudgedEnd
from shardtune.service.planning import study_snapshot
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.process.context import Context
from shardtune.service.workers.registry import check_protocol, of_session

_ENDS = ("measurement", "model_summary", "resume_check", "diagnosis", "failure")
_END_OF = {
    RunPurpose.MODEL_SUMMARY: "model_summary",
    RunPurpose.RESUME_CHECK: "resume_check",
    RunPurpose.TRACE: "diagnosis",
}
"""Of every other run: a measurement."""


def renew(context: Context, run_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
    """Extend a lease and store progress; tells the worker to stop when the run is no longer its own."""
    check_protocol(heartbeat.protocol_version)
    now, lease_s = context.now(), context.settings.lease_s
    if context.settings.retune_yields == "at_once":
        preemption.give_up(context, run_id, heartbeat.session)
    values: dict[str, object] = {"lease_until": now + timedelta(seconds=lease_s)}
    if heartbeat.progress is not None:
        values["progress"] = heartbeat.progress
    with context.db.write() as session:
        if context.principal.project_id is not None:
            of_session(context, session, heartbeat.session)
        if leases.write_guarded(session, run_id, heartbeat.attempt, heartbeat.session, **values):
            is_draining = workers.note_seen(session, heartbeat.session, now)
            return HeartbeatAnswer(action="continue", lease_s=lease_s, is_draining=is_draining)
        if leases.get(session, run_id) is None:
            raise NotFound("unknown_run", f"run {run_id} does not exist; stop its ranks and ask for a lease")
        attempt = leases.attempt_of(session, run_id, heartbeat.attempt)
    return HeartbeatAnswer(action="stop", reason=_why_lost(attempt, heartbeat.session), lease_s=lease_s)


def finish(context: Context, run_id: str, report: Report) -> ReportAnswer:
    """Store the end of an attempt. The same report again is no news; from anyone but the lease's holder, a 409."""
    check_protocol(report.protocol_version)
    told = traces.explained(context, run_id, report.diagnosis) if report.diagnosis is not None else None
    with context.db.write() as session:
        if context.principal.project_id is not None:
            of_session(context, session, report.session)
        held = hold(session, run_id)
        if held is None:
            raise NotFound("unknown_run", f"run {run_id} does not exist; drop the report and ask for a lease")
        attempt, key = held.attempt(report.attempt), report.content_key()
        if _is_repeated(attempt, report, key):
            return ReportAnswer(applied=False)
        _check_live(held.run, attempt, report)
        _check_outcome(held.run, report)
        before = context.planner_cache.snapshot(held.study.id, held.study.version)
        if before is not None:
            held.rejected = before.rejected
        ended = host_exclusivity.with_neighbours(session, held.run, _ended(report, key, told))
        outcomes.settle(session, held, ended, context.now())
        confirming_s = None if before is None else _confirming_s(before, held.run, report)
        seen = study_snapshot.view(session, held.study, held.trials, held.rejected, confirming_s)
        seen, goes_on = advance.begin_next(context, session, held, seen)
    end = (attempt.end if attempt is not None else None) or "unknown"
    context.metrics.ended(held.run.purpose, end, report.gpu_seconds)
    context.planner_cache.keep_snapshot(seen)
    if goes_on:
        context.planner_cache.note_begun(report.session, held.study.id)
    advance.advance(context, held.study.id, seen)
    return ReportAnswer(applied=True)


def _confirming_s(before: StudySnapshot, run: RunRow, report: Report) -> float:
    """GPU-seconds of all final comparisons so far, without a question that would have what has changed written first."""
    _, spent_s = before.final_comparison_cost
    return spent_s + (report.gpu_seconds if run.purpose == RunPurpose.VALIDATION else 0.0)


def _is_repeated(attempt: AttemptRow | None, report: Report, key: str) -> bool:
    if attempt is None or attempt.worker_session != report.session or attempt.report_key is None:
        return False
    if attempt.report_key != key:
        raise Conflict(
            "report_differs",
            f"attempt ({report.attempt}) was reported before with another content; the first report stands",
        )
    return True


def _check_live(run: RunRow, attempt: AttemptRow | None, report: Report) -> None:
    is_live = run.state is TrialState.RUNNING and run.attempt == report.attempt and run.worker_session == report.session
    if not is_live:
        reason = _why_lost(attempt, report.session)
        raise Conflict("lease_lost", f"attempt ({report.attempt}) of {run.id}: {reason}; nothing was changed")


def _check_outcome(run: RunRow, report: Report) -> None:
    """A report carries one end, of the kind the run can have."""
    right = _END_OF.get(run.purpose, "measurement")
    given = [name for name in _ENDS if getattr(report, name) is not None]
    if len(given) != 1 or given[0] not in (right, "failure"):
        raise invalid(
            ", ".join(_ENDS),
            ", ".join(given) or None,
            f"a report of a {run.purpose} run carries either {right} or failure, but this has "
            f"({', '.join(given) or 'neither'}); send exactly one",
        )


def _ended(report: Report, key: str, told: Diagnosis | None) -> JudgedEnd:
    return JudgedEnd(
        gpu_seconds=report.gpu_seconds,
        measurement=report.measurement,
        model_summary=report.model_summary,
        resume_check=report.resume_check,
        diagnosis=told,
        failure=report.failure,
        # A worker that itself says so is leaving in good order and hands the run back.
        is_release=report.failure is not None and report.failure.kind is FailureKind.WORKER_LOST,
        log_tail=report.log_tail,
        report_key=key,
    )


def _why_lost(attempt: AttemptRow | None, worker_session: str) -> str:
    if attempt is None or attempt.worker_session != worker_session:
        return "the lease belongs to another session"
    if attempt.end == TrialState.CANCELLED.value:
        return "cancelled"
    return f"lease lost: the attempt has ended ({attempt.end})"
