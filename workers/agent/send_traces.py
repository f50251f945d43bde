"""Upload of a run's raw profiler traces to the service, for people to view; the diagnosis does not depend on the
upload."""

import logging
import time
from pathlib import Path

from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import Lease
from shardtune.workers.agent.client import WorkerClient, call_patiently
from shardtune.workers.agent.client_errors import ClientError, Unreachable

log = logging.getLogger(__name__)

_PATIENCE_S = 30.0
"""Seconds for which the upload of one trace is tried again and again, because the service rejects traces while its
memory for uploads is full."""


def send_traces(
    client: WorkerClient,
    session: str,
    lease: Lease,
    diagnosis: Diagnosis | Failure,
    patience_s: float = _PATIENCE_S,
) -> Diagnosis | Failure:
    """Upload the ranks' traces in order, waiting while the service is busy. Returns the diagnosis; if an upload failed,
    with a note on the first rank whose trace is missing."""
    if isinstance(diagnosis, Failure) or diagnosis.recorded is None:
        return diagnosis
    folder = Path(diagnosis.recorded.folder)
    for rank in diagnosis.ranks:
        try:
            content = (folder / f"rank_{rank}.json.gz").read_bytes()
            _send_patiently(client, session, lease, rank, content, patience_s)
        except (ClientError, OSError) as error:
            log.warning("the trace of rank %d was not sent: %s", rank, error)
            note = f"the service stores no raw trace from rank {rank} on; they are with the worker ({error})"
            return diagnosis.model_copy(update={"notes": (*diagnosis.notes, note[:1000])})
    return diagnosis


def _send_patiently(
    client: WorkerClient, session: str, lease: Lease, rank: int, content: bytes, patience_s: float
) -> None:
    errors: list[Unreachable] = []
    ends_s = time.monotonic() + patience_s

    def send() -> bool:
        client.store_trace(session, lease.run_id, lease.attempt, rank, content)
        return True

    if call_patiently(send, lambda: time.monotonic() > ends_s, errors.append) is None:
        raise errors[-1]
