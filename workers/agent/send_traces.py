"""Give the service the raw traces of a run, for whoever wants to look at them; a diagnosis does not depend on it."""

import logging
from pathlib import Path

from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import Lease
from shardtune.workers.agent.client import ClientError, WorkerClient

log = logging.getLogger(__name__)


def send_traces(client: WorkerClient, session: str, lease: Lease, told: Diagnosis | Failure) -> Diagnosis | Failure:
    """One rank after the other, each tried once. What was told says where it ended, if not with the last rank."""
    if isinstance(told, Failure) or told.recorded is None:
        return told
    folder = Path(told.recorded.folder)
    for rank in told.ranks:
        try:
            content = (folder / f"rank_{rank}.json.gz").read_bytes()
            client.store_trace(session, lease.run_id, lease.attempt, rank, content)
        except (ClientError, OSError) as error:
            log.warning("the trace of rank %d stays here: %s", rank, error)
            note = f"the service stores no raw trace from rank {rank} on; they are with the worker ({error})"
            return told.model_copy(update={"notes": (*told.notes, note[:1000])})
    return told
