"""Upload of a run's raw profiler traces to the service, for people to view; the diagnosis does not depend on the
upload."""

import logging
from pathlib import Path

from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import Lease
from shardtune.workers.agent.client import WorkerClient
from shardtune.workers.agent.client_errors import ClientError

log = logging.getLogger(__name__)


def send_traces(
    client: WorkerClient, session: str, lease: Lease, diagnosis: Diagnosis | Failure
) -> Diagnosis | Failure:
    """Upload the ranks' traces in order, each with one attempt; returns the diagnosis, with a note on the first missing
    rank if an upload failed."""
    if isinstance(diagnosis, Failure) or diagnosis.recorded is None:
        return diagnosis
    folder = Path(diagnosis.recorded.folder)
    for rank in diagnosis.ranks:
        try:
            content = (folder / f"rank_{rank}.json.gz").read_bytes()
            client.store_trace(session, lease.run_id, lease.attempt, rank, content)
        except (ClientError, OSError) as error:
            log.warning("the trace of rank %d was not sent: %s", rank, error)
            note = f"the service stores no raw trace from rank {rank} on; they are with the worker ({error})"
            return diagnosis.model_copy(update={"notes": (*diagnosis.notes, note[:1000])})
    return diagnosis
