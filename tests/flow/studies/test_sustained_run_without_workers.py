"""A known answer does not wait for a sustained run that no worker is left to make."""

import pytest

from shardtune.api_schemas.trials.leases import TASK_KINDS, TrialTask
from shardtune.service.leasing import reclaim
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, quietly

SECONDS = 1000.0
STUDY = {
    "space": {"backends": ["ddp", "zero", "fsdp2"], "knobs": {"malloc": "default"}},
    "budget": {"max_trials": 8, "sustained_run_s": SECONDS, "resume_check": False},
}


def worker_of(client, name="sim"):
    return SimulatedWorker(client, name, behave=quietly, task_kinds=TASK_KINDS).register()


@pytest.fixture
def study_id(quick_client, clock):
    """Study whose only worker was lost in its sustained run."""
    worker = worker_of(quick_client)
    study_id = quick_client.post("/v1/studies", json=SPEC | STUDY).raise_for_status().json()["study_id"]
    while not (isinstance((lease := worker.lease()).task, TrialTask) and lease.task.plan.max_measure_s == SECONDS):
        worker.do(lease)
    sweep_after(quick_client, clock, 100)
    return study_id


def sweep_after(client, clock, seconds):
    clock.turn(seconds)
    reclaim.sweep(client.app.state.context)


def study_of(client, study_id):
    return client.get(f"/v1/studies/{study_id}").raise_for_status().json()


def test_a_study_whose_last_worker_was_lost_completes_after_minutes(quick_client, clock, study_id):
    """It waited for ever, although its verdict was known."""
    sweep_after(quick_client, clock, 280)
    assert study_of(quick_client, study_id)["state"] == "running", "a worker that was restarted may come back"
    sweep_after(quick_client, clock, 30)
    study = study_of(quick_client, study_id)
    assert (study["state"], study["result"]["verdict"]) == ("complete", "confirmed")
    sustained = study["result"]["sustained"]
    assert (sustained["outcome"], sustained["reason"]) == (
        "left_out", "no worker for the study's runs was there any more"
    )  # fmt: skip
    assert worker_of(quick_client, "late").lease() is None


def test_a_live_worker_makes_the_run_however_long_it_waited(quick_client, clock, study_id):
    clock.turn(1000)
    worker = worker_of(quick_client, "other")
    reclaim.sweep(quick_client.app.state.context)
    assert study_of(quick_client, study_id)["state"] == "running"
    assert worker.work() == 1
    assert study_of(quick_client, study_id)["result"]["sustained"]["outcome"] == "measured"


def test_a_paused_study_stays_paused(quick_client, clock, study_id):
    quick_client.post(f"/v1/studies/{study_id}:pause").raise_for_status()
    sweep_after(quick_client, clock, 1000)
    assert study_of(quick_client, study_id)["state"] == "paused"
