"""Raw traces go to the service one by one; what does not go is said, and nothing depends on it."""

import pytest

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import Lease, TraceTask
from shardtune.workers.agent.client_errors import LeaseLost, RequestRejected, Unreachable
from shardtune.workers.agent.send_traces import send_traces
from tests.support.service.simulated_worker import diagnosis, failure
from tests.support.workers.worker_fakes import make_task

LEASE = Lease(
    run_id="r1", attempt=3, study_id="s1", trial_number=0, task=TraceTask(trial=make_task()), lease_s=20,
    heartbeat_s=2, deadline_s=30, no_progress_s=30,
)  # fmt: skip


@pytest.fixture
def recorded_diagnosis(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"rank_{rank}.json.gz").write_bytes(bytes([rank]))
    return diagnosis(recorded=diagnosis().recorded.model_copy(update={"folder": str(tmp_path)}))


class Client:
    """Takes traces until it is told otherwise."""

    def __init__(self, *errors):
        self.errors, self.taken = list(errors), []

    def store_trace(self, session, run_id, attempt, rank, content):
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        self.taken.append((session, run_id, attempt, rank, content))


def test_all_ranks_are_sent_and_nothing_is_said_of_it(recorded_diagnosis):
    client = Client()
    assert send_traces(client, "s", LEASE, recorded_diagnosis) == recorded_diagnosis
    assert client.taken == [("s", "r1", 3, rank, bytes([rank])) for rank in (0, 1)]


@pytest.mark.parametrize(
    "error", [RequestRejected("413 too large"), LeaseLost("404 no such route"), Unreachable("down")]
)
def test_what_the_service_does_not_take_is_a_note_and_the_rest_is_not_tried(recorded_diagnosis, error):
    client = Client(None, error)
    sent = send_traces(client, "s", LEASE, recorded_diagnosis, patience_s=0)
    assert len(client.taken) == 1 and sent.model_copy(update={"notes": recorded_diagnosis.notes}) == recorded_diagnosis
    assert sent.notes[-1] == f"the service stores no raw trace from rank 1 on; they are with the worker ({error})"


def test_a_service_whose_memory_is_in_use_is_asked_again(recorded_diagnosis):
    client = Client(Unreachable("429 too_many_bytes"), None, Unreachable("503 memory_busy"))
    assert send_traces(client, "s", LEASE, recorded_diagnosis) == recorded_diagnosis
    assert [rank for *_, rank, _ in client.taken] == [0, 1]


def test_a_trace_that_is_gone_is_a_note_too(recorded_diagnosis, tmp_path):
    (tmp_path / "rank_0.json.gz").unlink()
    assert "from rank 0 on" in send_traces(Client(), "s", LEASE, recorded_diagnosis).notes[-1]


def test_a_run_that_told_nothing_sends_nothing():
    client, failed = Client(), failure(FailureKind.SETUP)
    assert send_traces(client, "s", LEASE, failed) == failed and client.taken == []
