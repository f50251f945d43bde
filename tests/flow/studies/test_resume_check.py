"""The winner goes on from its own checkpoint before it becomes the answer, or the answer says why it did not."""

import pytest

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TASK_KINDS, ResumeTask
from shardtune.service.leasing import run_limits
from shardtune.service.lifecycle import expiry
from tests.support.long_run import wide
from tests.support.service.simulated_worker import (
    SPEC,
    SimulatedWorker,
    failure,
    measurement,
    quietly,
    restarted,
    speed_of,
)

KINDS = {"task_kinds": TASK_KINDS}
NEW = {**KINDS, "behave": quietly}


def create(client, **changes):
    answer = client.post("/v1/studies", json=SPEC | {"space": {"backends": ["ddp", "zero", "fsdp2"]}} | changes)
    assert answer.status_code == 201, answer.text
    return answer.json()["study_id"]


def best(client, study_id):
    return client.get(f"/v1/studies/{study_id}/best").json()


def up_to_the_restart(worker):
    """Everything before it; the lease of the restart run."""
    while (lease := worker.lease()) is not None:
        if isinstance(lease.task, ResumeTask):
            return lease
        worker.do(lease)
    raise AssertionError("the study ended without a restart run")


@pytest.mark.wide_on_postgres
def test_the_winner_goes_on_from_its_checkpoint_and_the_answer_says_so(client):
    worker = SimulatedWorker(client, **NEW).register()
    study_id = create(client)
    lease = up_to_the_restart(worker)
    study = client.get(f"/v1/studies/{study_id}").json()
    assert (study["state"], study["phase"], study["result"]) == ("running", "final_comparison", None)
    worker.do(lease)
    result = best(client, study_id)
    check = result["resume_check"]
    assert result["verdict"] == "confirmed" and check["trial_number"] == result["best"]["trial_number"]
    assert lease.trial_number == check["trial_number"] and lease.task.config.backend == "fsdp2"
    assert (check["outcome"], check["steps_before"], check["steps_after"]) == ("passed", 20, 5)
    assert (check["save_s"], check["load_s"], check["checkpoint_bytes"]) == (0.5, 0.25, 12_000_000)
    assert check["loss_difference"] == 0 and check["allocator_retries"] is None
    runs = client.get(f"/v1/studies/{study_id}/trials").json()["trials"][check["trial_number"]]["runs"]
    assert runs[-1]["purpose"] == "resume_check" and runs[-1]["resume_check"]["losses"] == [5.0] * 25


def test_its_deadline_has_time_for_the_checkpoint_of_the_study_s_model(quick_client, monkeypatch):
    worker = SimulatedWorker(quick_client, **NEW).register()
    study_id = create(quick_client)
    monkeypatch.setattr(run_limits, "_SLOW_DISK", 1e3)
    lease = up_to_the_restart(worker)
    parameters = quick_client.get(f"/v1/studies/{study_id}").json()["model_summary"]["parameters"]
    assert parameters >= 1e6 and lease.deadline_s > 2 * 16 * parameters / 1e3


@pytest.mark.parametrize(
    ("resume_check", "says"),
    [
        pytest.param(
            restarted(loss=5.1), "loss of step 20 is 5.1, but 5 in the processes that saved", id="another training"
        ),
        wide(restarted(allocator_retries=1, allocator_ooms=2), "ran out of memory 3 times", id="allocator retries"),
        pytest.param(failure(FailureKind.OOM, "no memory for loading"), "no memory for loading", id="out of memory"),
        wide(failure(FailureKind.CRASH, "cannot load"), "cannot load", id="crashes"),
    ],
)
def test_a_winner_that_fails_its_resume_check_is_rejected_and_the_next_is_compared(quick_client, resume_check, says):
    rejected = []

    def once(lease):
        if not rejected or rejected[0] == lease.trial_number:
            rejected[:] = [lease.trial_number]
            return resume_check
        return restarted()

    worker = SimulatedWorker(quick_client, resume_check=once, **NEW).register()
    study_id = create(quick_client)
    worker.work()
    result = best(quick_client, study_id)
    assert result["resume_check"]["outcome"] == "passed" and result["best"]["trial_number"] != rejected[0]
    trial = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"][rejected[0]]
    assert trial["state"] == "infeasible" and says in trial["failure"]["message"]
    assert [says in note for note in result["notes"]].count(True) == 1


@pytest.mark.wide_on_postgres
def test_the_only_configuration_that_runs_is_asked_too(client):
    only = lambda lease, _: measurement(2000.0) if lease.trial_number == 0 else failure(FailureKind.OOM, "no memory")  # noqa: E731
    worker = SimulatedWorker(client, behave=only, **KINDS).register()
    study_id = create(client, space={"backends": ["ddp"]})
    worker.do(up_to_the_restart(worker))
    result = best(client, study_id)
    assert (result["best"]["trial_number"], result["final_comparison"]) == (0, None)
    assert result["resume_check"]["outcome"] == "passed" and any(
        "nothing to compare" in note for note in result["notes"]
    )


def test_a_baseline_that_nothing_beats_stays_and_its_failure_is_reported(quick_client):
    slow = lambda _lease, task: measurement(2000.0 if task.config.backend == "ddp" else speed_of(task.config))  # noqa: E731
    worker = SimulatedWorker(quick_client, behave=slow, resume_check=lambda _: restarted(loss=6.0), **KINDS).register()
    baseline = {"strategy": {"kind": "ddp"}, "micro_batch": 1}
    study_id = create(quick_client, baseline=baseline, space={"backends": ["ddp", "fsdp2"]})
    worker.work()
    result = best(quick_client, study_id)
    assert result["verdict"] == "not_faster" and result["best"] == result["baseline"]
    assert result["resume_check"]["outcome"] == "failed" and "6" in result["resume_check"]["reason"]


@pytest.mark.parametrize("kind", [FailureKind.SETUP, wide(FailureKind.DEADLINE), wide(FailureKind.DEVICE)])
def test_a_fault_of_the_platform_takes_no_win_away(quick_client, kind):
    worker = SimulatedWorker(quick_client, resume_check=lambda _: failure(kind, "the disk is full"), **NEW).register()
    study_id = create(quick_client)
    worker.work()
    result = best(quick_client, study_id)
    assert result["verdict"] == "confirmed"
    assert result["resume_check"]["outcome"] == "not_checked" and "the disk is full" in result["resume_check"]["reason"]
    runs = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"][result["best"]["trial_number"]]["runs"]
    assert runs[-1]["state"] == "failed" and len(runs[-1]["attempts"]) == 2


@pytest.mark.wide_on_postgres
def test_a_worker_killed_in_it_is_lost_and_the_run_is_repeated(client, clock):
    context = client.app.state.context
    first, second = (SimulatedWorker(client, name=f"sim-{i}", **NEW).register() for i in range(2))
    study_id = create(client, cluster=first.inventory.cluster.model_dump())
    lost = up_to_the_restart(first)
    clock.turn(context.settings.lease_s + 1)
    assert expiry.sweep(context) == 1
    again = second.lease()
    assert (again.run_id, again.attempt) == (lost.run_id, 2)
    assert first.report(lost, restarted()).status_code == 409
    second.do(again)
    assert best(client, study_id)["resume_check"]["outcome"] == "passed"


def test_an_older_worker_is_not_given_it_and_the_answer_says_so(quick_client):
    old = SimulatedWorker(quick_client, behave=quietly).register()
    study_id = create(quick_client)
    old.work()
    result = best(quick_client, study_id)
    assert result["verdict"] == "confirmed" and result["resume_check"]["outcome"] == "not_checked"
    assert "release" in result["resume_check"]["reason"]


def test_an_older_worker_leaves_it_to_a_newer_one_while_there_is_one(quick_client, clock):
    old, new = SimulatedWorker(quick_client, "old", quietly).register(), SimulatedWorker(quick_client, **NEW).register()
    study_id = create(quick_client, cluster=old.inventory.cluster.model_dump())
    while quick_client.get(f"/v1/studies/{study_id}").json()["phase"] != "final_comparison":
        old.do(old.lease())
    while (lease := old.lease()) is not None:
        old.do(lease)
    assert quick_client.get(f"/v1/studies/{study_id}").json()["state"] == "running"
    reserved_lease = new.lease()
    assert isinstance(reserved_lease.task, ResumeTask)
    new.report(reserved_lease, failure(FailureKind.WORKER_LOST))
    assert old.lease() is None, "it waits for the newer worker again"
    clock.turn(3600)
    assert old.lease() is None
    assert best(quick_client, study_id)["resume_check"]["outcome"] == "not_checked", "nobody is left who could"


def test_a_budget_can_leave_it_out(quick_client):
    worker = SimulatedWorker(quick_client, **NEW).register()
    study_id = create(quick_client, budget={"max_trials": 8, "resume_check": False})
    runs = worker.work()
    result = best(quick_client, study_id)
    assert result["resume_check"] is None and runs == 1 + 8 + result["final_comparison"]["runs"]


def test_a_report_of_another_kind_is_rejected(quick_client):
    worker = SimulatedWorker(quick_client, **NEW).register()
    create(quick_client)
    lease = up_to_the_restart(worker)
    assert worker.report(lease, measurement(1000.0)).status_code == 422
    broken = restarted().model_dump(mode="json")
    broken["resumed"] = broken["resumed"][1:]
    assert worker.report(lease, restarted(), resume_check=broken).status_code == 422
    assert worker.report(lease, restarted()).json() == {"applied": True}
