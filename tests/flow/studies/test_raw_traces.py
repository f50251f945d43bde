"""Raw traces: sent by the worker while it holds the run, stored within bounds, and given to who may read the study."""

import gzip
import os
from dataclasses import replace

import pytest

from shardtune.api_schemas.trials.leases import TASK_KINDS
from shardtune.service import retention
from shardtune.workers.agent.client import WorkerClient
from shardtune.workers.agent.send_traces import send_traces
from tests.support.service.page_reader import page
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, diagnosis, quietly

TRACE = gzip.compress(b'{"traceEvents": []}')
BUDGET = {"max_trials": 2, "max_pairs": 7, "resume_check": False}


def kib(size: int) -> bytes:
    return b"\x1f\x8b" + os.urandom(size * 1024 - 2)


def measured(client):
    """Make the study that most rules here are about."""
    worker = SimulatedWorker(client, behave=quietly, task_kinds=TASK_KINDS).register()
    study = SPEC | {"budget": BUDGET}
    client.post("/v1/studies", json=study, params={"study_id": "ended"}).raise_for_status()
    worker.work()


@pytest.fixture
def sqlite_start(request, sqlite_template, sqlite_after):
    """Begin with the study where a test names it."""
    return sqlite_after(measured) if "ended" in request.fixturenames else sqlite_template


@pytest.fixture
def ended(quick_client):
    """A worker and the trials of its study, which is complete."""
    worker = SimulatedWorker(quick_client, behave=quietly, task_kinds=TASK_KINDS).register()
    return worker, "/v1/studies/ended/trials"


def traced(client, worker, path):
    """The lease of a run under the profiler."""
    client.post(f"{path}:diagnose").raise_for_status()
    return worker.lease()


def limited(client, **changes):
    """The service with other settings."""
    context = client.app.state.context
    client.app.state.context = replace(context, settings=context.settings.model_copy(update=changes))


def ranks(client, path):
    return [trace["rank"] for trace in client.get(f"{path}/diagnosis").json()["traces"]]


def test_what_a_rank_recorded_is_downloaded_as_it_was_sent(quick_client, ended):
    worker, trials = ended
    lease = traced(quick_client, worker, f"{trials}/1")
    assert [worker.send_trace(lease, rank, TRACE).status_code for rank in (0, 1, 1)] == [204, 204, 204]
    worker.report(lease, diagnosis()).raise_for_status()
    traces = quick_client.get(f"{trials}/1/diagnosis").json()["traces"]
    assert traces == [{"rank": 0, "bytes": len(TRACE)}, {"rank": 1, "bytes": len(TRACE)}]
    answer = quick_client.get(f"{trials}/1/trace", params={"rank": 1})
    assert (answer.content, answer.headers["content-type"]) == (TRACE, "application/gzip")
    assert answer.headers["content-disposition"].endswith('-1-rank-1.json.gz"')
    shown = f"{trials.removeprefix('/v1')}/1"
    assert f'href="{shown}/trace/1"' in page(quick_client, f"{shown}/why")
    assert quick_client.get(f"{shown}/trace/1").content == TRACE


def test_what_is_not_stored_is_said_with_the_ranks_that_are(quick_client, ended):
    worker, trials = ended
    missing = quick_client.get(f"{trials}/1/trace")
    assert (missing.status_code, missing.json()["code"]) == (404, "unknown_diagnosis")
    worker.do(traced(quick_client, worker, f"{trials}/1"))
    missing = quick_client.get(f"{trials}/1/trace")
    assert (missing.status_code, missing.json()["code"]) == (404, "unknown_trace")
    assert "stored ranks: none" in missing.json()["detail"]
    assert "not stored here; sim has them" in page(quick_client, f"{trials.removeprefix('/v1')}/1/why")


def test_one_that_is_too_large_is_rejected_with_both_figures(quick_client, ended):
    worker, trials = ended
    lease = traced(quick_client, worker, f"{trials}/0")
    limited(quick_client, max_trace_mib=0.5)
    rejected = worker.send_trace(lease, 0, kib(600))
    assert (rejected.status_code, rejected.json()["code"]) == (413, "content_too_large")
    assert "0.6 MiB" in rejected.json()["detail"] and "0.5 MiB of a rank at most" in rejected.json()["detail"]
    limited(quick_client, max_trace_mib=16)
    assert worker.send_trace(lease, 0, kib(8 * 1024)).status_code == 204, "compressed bytes are no JSON to be counted"
    assert worker.send_trace(lease, 0, b"plain").status_code == 422


def test_the_oldest_of_a_project_make_room_and_a_repeated_run_replaces_its_traces(quick_client, ended, clock):
    worker, trials = ended
    limited(quick_client, keep_traces_mib=0.25)
    worker.raw_trace = lambda _: kib(100)
    for number in (0, 1):
        worker.do(traced(quick_client, worker, f"{trials}/{number}"))
        clock.turn(1)
    assert [ranks(quick_client, f"{trials}/{number}") for number in (0, 1)] == [[0], [0]]
    worker.do(traced(quick_client, worker, f"{trials}/1"))
    assert [ranks(quick_client, f"{trials}/{number}") for number in (0, 1)] == [[0], [0]]
    lease = traced(quick_client, worker, f"{trials}/1")
    for rank in (0, 1):
        worker.send_trace(lease, rank, kib(100)).raise_for_status()
    assert [ranks(quick_client, f"{trials}/{number}") for number in (0, 1)] == [[], [0, 1]]


def test_old_ones_are_forgotten_and_what_they_told_stays(quick_client, ended, clock):
    worker, trials = ended
    worker.raw_trace = lambda _: TRACE
    worker.do(traced(quick_client, worker, f"{trials}/0"))
    context = quick_client.app.state.context
    assert retention.delete_old(context)["traces"] == 0
    clock.turn((context.settings.keep_traces_days + 1) * 86_400)
    assert retention.delete_old(context)["traces"] == 1
    body = quick_client.get(f"{trials}/0/diagnosis").json()
    assert body["traces"] == [] and body["diagnosis"] is not None
    assert quick_client.get(f"{trials}/0/trace").json()["code"] == "unknown_trace"


def test_only_the_holder_of_a_run_under_the_profiler_may_send_traces(quick_client, ended):
    worker, trials = ended
    lease = traced(quick_client, worker, f"{trials}/0")

    def rejected(reported, rank=0):
        return worker.send_trace(reported, rank, TRACE).json()["code"]

    assert rejected(lease.model_copy(update={"attempt": 2})) == "lease_lost"
    assert rejected(lease.model_copy(update={"run_id": "run-none"})) == "unknown_run"
    assert rejected(lease, rank=99) == "invalid_request"
    worker.do(lease)
    assert rejected(lease) == "lease_lost"
    quick_client.post("/v1/studies", json=SPEC | {"budget": BUDGET, "seed": 5}).raise_for_status()
    assert rejected(worker.lease()) == "invalid_request"


def test_the_worker_s_own_client_speaks_as_the_service_listens(http, tmp_path):
    worker = SimulatedWorker(http, task_kinds=TASK_KINDS).register()
    trials = f"/v1/studies/{http.post('/v1/studies', json=SPEC | {'budget': BUDGET}).json()['study_id']}/trials"
    worker.work()
    lease = traced(http, worker, f"{trials}/0")
    for rank in (0, 1):
        (tmp_path / f"rank_{rank}.json.gz").write_bytes(TRACE)
    reported_diagnosis = diagnosis(recorded=diagnosis().recorded.model_copy(update={"folder": str(tmp_path)}))
    client = WorkerClient(str(http.base_url))
    assert send_traces(client, worker.session, lease, reported_diagnosis) == reported_diagnosis
    client.close()
    assert ranks(http, f"{trials}/0") == [0, 1]
