"""Diagnoses from a hostile worker, and hostile requests for diagnoses: every answer is a 2xx or a clear 4xx."""

import os
from random import Random

import pytest

from shardtune.api_schemas.trials.leases import TASK_KINDS
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, diagnosis
from tests.support.values.mutated_json import mutate

BUDGET = {"max_trials": 2, "max_pairs": 7, "resume_check": False}


def tuned(client):
    """Two trials and their comparison."""
    worker = SimulatedWorker(client, task_kinds=TASK_KINDS).register()
    client.post("/v1/studies", json=SPEC | {"budget": BUDGET}, params={"study_id": "tuned"}).raise_for_status()
    worker.work()


@pytest.fixture
def sqlite_start(sqlite_after):
    """Each test begins with the study."""
    return sqlite_after(tuned)


@pytest.fixture
def traced(quick_client):
    """A worker, its lease of a run under the profiler, and the address of the trial."""
    worker = SimulatedWorker(quick_client, task_kinds=TASK_KINDS).register()
    path = "/studies/tuned/trials/1"
    quick_client.post(f"/v1{path}:diagnose").raise_for_status()
    return worker, worker.lease(), path


def report(worker, lease, value):
    body = {"attempt": lease.attempt, "gpu_seconds": 6.0, "diagnosis": value}
    try:
        return worker.post(f"/v1/runs/{lease.run_id}/report", body)
    except ValueError:
        return None  # JSON has no NaN; the client does not send it.


@pytest.mark.parametrize(
    "changes",
    [
        {"ranks": []},
        {"ranks": [0, 0]},
        {"steps": []},
        {"step_s": -1.0},
        {"step_s": 1e308},
        {"world_size": 0},
        {"timeline": {"step": 0, "seconds": 1.0, "lanes": []}},
        {"recorded": {"folder": "f", "bytes": 10**30, "steps": 1, "step_s": 1, "plain_step_s": 1, "elapsed_s": 1}},
    ],
    ids=str,
)
def test_a_diagnosis_that_cannot_be_shown_is_rejected_with_its_field(quick_client, traced, changes):
    worker, lease, path = traced
    answer = report(worker, lease, diagnosis().model_dump(mode="json") | changes)
    assert answer.status_code == 422 and "diagnosis" in answer.json()["detail"]
    worker.report(lease, diagnosis()).raise_for_status()
    assert quick_client.get(f"{path}/why").status_code == 200


def test_whatever_a_worker_reports_is_rejected_or_shown(quick_client, traced):
    worker, lease, path = traced
    random = Random(0)
    for _ in range(int(os.environ.get("SHARDTUNE_FUZZ_INPUTS", "40"))):
        answer = report(worker, lease, mutate(diagnosis().model_dump(mode="json"), random, random.randrange(1, 4)))
        if answer is None or answer.status_code == 422:
            continue
        assert answer.status_code == 200, answer.text
        for address in (f"{path}/why", f"/v1{path}/diagnosis"):
            assert quick_client.get(address, headers={"accept": "text/html"}).status_code == 200
        quick_client.post(f"/v1{path}:diagnose").raise_for_status()
        lease = worker.lease()


@pytest.mark.parametrize("number", ["9" * 25, "-1", "x", "٣", "1e3", "%00"])
def test_a_trial_that_no_study_has_is_a_clear_rejection(quick_client, traced, number):
    study = traced[2].split("/")[2]
    for method, prefix in (("GET", ""), ("GET", "/v1"), ("POST", "/v1")):
        for rest in ("", "/why", "/trace/0", "/diagnosis", ":diagnose"):
            address = f"{prefix}/studies/{study}/trials/{number}{rest}"
            assert 400 <= quick_client.request(method, address).status_code < 500, (method, address)


def test_a_rank_that_no_trace_has_is_a_clear_rejection(quick_client, traced):
    for rank in ("9" * 25, "-1", "x"):
        assert 400 <= quick_client.get(f"{traced[2]}/trace/{rank}").status_code < 500
        assert 400 <= quick_client.get(f"/v1{traced[2]}/trace", params={"rank": rank}).status_code < 500
