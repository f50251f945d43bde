"""Store the raw trace of a rank, sent by the worker that recorded it while the worker has the run's lease."""

from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db import traces
from shardtune.db.queries import leases
from shardtune.service.http.errors import ApiError, Conflict, NotFound, invalid
from shardtune.service.process.context import Context
from shardtune.service.workers.registry import worker_of_session

_MIB = 1 << 20
_GZIP = b"\x1f\x8b"


def check_size(context: Context, size: int) -> None:
    """Reject a raw trace larger than the limit before its content is read.

    Raises:
        ApiError: status 413; the message names the trace's size and the limit.
    """
    settings = context.settings
    limit_mib = min(settings.max_trace_mib, settings.keep_traces_mib)
    if size > limit_mib * _MIB:
        raise ApiError(
            "content_too_large",
            f"the trace has {size / _MIB:.1f} MiB, and the service stores {limit_mib:g} MiB of a rank at most "
            "(SHARDTUNE_MAX_TRACE_MIB, SHARDTUNE_KEEP_TRACES_MIB)",
        )


def store(
    context: Context, run_id: str, rank: int, worker_session: str, attempt: int, content: bytes | bytearray
) -> None:
    """Store a rank's raw trace, replacing the traces of the trial's earlier runs. Deletes the project's oldest traces
    if the project's traces exceed their limit.

    Raises:
        NotFound: the run does not exist.
        Conflict: the attempt is not the sender's, or has ended.
        Invalid: the run has no such rank, the run records no traces, or the content is not a gzip file.
    """
    # The announced size was checked by the route; a body sent in chunks announces none.
    check_size(context, len(content))
    if not content.startswith(_GZIP):
        raise invalid("body", None, "body must be a trace compressed by gzip, as torch's profiler writes to a .json.gz")
    with context.db.write() as session:
        if context.principal.project_id is not None:
            worker_of_session(context, session, worker_session)
        locked = leases.lock_with_study(session, run_id)
        if locked is None or not context.principal.sees(locked[0].project_id):
            raise NotFound("unknown_run", f"run {run_id} does not exist; drop the trace and ask for a lease")
        study, run = locked
        # Fenced by session and attempt like a report: a worker that lost its lease must not replace the traces of the
        # next attempt.
        if run.state is not TrialState.RUNNING or (run.attempt, run.worker_session) != (attempt, worker_session):
            raise Conflict("lease_lost", f"attempt ({attempt}) of {run.id} is not the sender's, or has ended")
        if run.purpose is not RunPurpose.TRACE or rank >= study.cluster.world_size:
            raise invalid(
                "rank", rank, f"rank ({rank}) must be a rank of a run under the profiler; {run.id} has no such rank"
            )
        max_bytes = int(context.settings.keep_traces_mib * _MIB)
        traces.put(session, run, study.project_id, rank, content, max_bytes, context.now())
