"""One long run of the winner after the verdict: the answer states its speed, and nothing that becomes of it changes the
verdict."""

from typing import Any

import pytest

from shardtune.api_schemas.machines.conditions import Conditions, DeviceSeen
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TASK_KINDS, Lease, TrialTask
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, failure, measurement, quietly, speed_of

SECONDS, LONG_SECONDS = 5.0, 1000.0
STUDY: dict[str, Any] = {
    "space": {"backends": ["ddp", "zero", "fsdp2"], "knobs": {"malloc": "default"}},
    "budget": {"max_trials": 8, "sustained_run_s": SECONDS, "resume_check": False},
}


def is_long(task: Any) -> bool:
    return isinstance(task, TrialTask) and task.plan.max_measure_s in (SECONDS, LONG_SECONDS)


class LongRuns:
    """Runs of a worker: those of a study, and what becomes of a sustained one."""

    def __init__(self, outcome: Any = None) -> None:
        self.leases, self.outcome = list[Lease](), outcome

    def __call__(self, lease: Lease, task: TrialTask) -> Any:
        if not is_long(task):
            return quietly(lease, task)
        self.leases.append(lease)
        return self.outcome or hot(0.9 * speed_of(task.config))


def hot(speed: float):
    """A run of 200 equal windows on a hot GPU."""
    seen = DeviceSeen(
        uuid="GPU-1", memory_before_gib=0.0, throttled_fraction=0.5, power_capped_fraction=0.0, samples=120,
        throttle_reasons=("software thermal slowdown",), sm_clock_mhz=1500.0, power_w=700.0, temperature_c=88.0,
    )  # fmt: skip
    run = measurement(speed)
    changes = {"measured_steps": 200, "window_step_times_s": (run.step_time_s,) * 200}
    return run.model_copy(update=changes | {"conditions": Conditions(devices=(seen,), foreign_cpu_cores=0.0)})


def worker_of(client, runs, name="sim", **inventory):
    return SimulatedWorker(client, name, behave=runs, **{"task_kinds": TASK_KINDS} | inventory).register()


def create(client, **changes):
    return client.post("/v1/studies", json=SPEC | STUDY | changes).raise_for_status().json()["study_id"]


def study_of(client, study_id):
    return client.get(f"/v1/studies/{study_id}").raise_for_status().json()


@pytest.mark.wide_on_postgres
def test_the_answer_states_both_speeds_and_the_verdict_is_that_of_the_comparison(client):
    runs = LongRuns()
    worker = worker_of(client, runs)
    study_id = create(client)
    worker.work()
    study = study_of(client, study_id)
    result, sustained = study["result"], study["result"]["sustained"]
    assert (study["state"], result["verdict"], len(runs.leases)) == ("complete", "confirmed", 1)
    assert sustained["trial_number"] == result["best"]["trial_number"] == runs.leases[0].trial_number
    assert sustained["tokens_per_s_per_gpu"] == pytest.approx(0.9 * result["best"]["tokens_per_s_per_gpu"])
    assert sustained["compared_tokens_per_s_per_gpu"] == result["best"]["tokens_per_s_per_gpu"]
    assert sustained["is_slower"] and (sustained["sm_clock_mhz"], sustained["temperature_c"]) == (1500.0, 88.0)
    trials = client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    of_winner = trials[result["best"]["trial_number"]]
    assert of_winner["runs"][-1]["purpose"] == "sustained" and of_winner["state"] == "complete"
    page = client.get(f"/studies/{study_id}").text
    assert "A long training is 10.0 % slower than the trials" in page and "up to 88 °C" in page
    spent = [attempt["gpu_seconds"] for trial in trials for run in trial["runs"] for attempt in run["attempts"]]
    assert study["gpu_seconds"] == sum(spent) + 6.0, "all runs count to the study's cost, and the model summary"
    assert of_winner["runs"][-1]["attempts"][-1]["gpu_seconds"] == 6.0
    assert client.get(f"/v1/studies/{study_id}/best").json()["sustained"] == sustained


def test_its_plan_asks_for_the_seconds_and_its_deadline_has_room_for_them(quick_client):
    runs = LongRuns()
    worker = worker_of(quick_client, runs)
    create(quick_client)
    worker.work()
    (lease,) = runs.leases
    plan = lease.task.plan
    assert (plan.max_measure_s, plan.prune_above_s, plan.undecided_s) == (SECONDS, None, None)
    settings = quick_client.app.state.context.settings
    assert lease.deadline_s > settings.run_deadline_s + SECONDS - 1 and lease.is_exclusive
    assert not plan.is_extended


@pytest.mark.parametrize("kind", [FailureKind.OOM, FailureKind.CRASH, FailureKind.NUMERICS])
def test_a_failed_run_leaves_the_answer_and_it_says_so(quick_client, kind):
    runs = LongRuns(failure(kind, "it failed"))
    worker = worker_of(quick_client, runs)
    study_id = create(quick_client)
    worker.work()
    study = study_of(quick_client, study_id)
    result = study["result"]
    assert (study["state"], result["verdict"]) == ("complete", "confirmed")
    assert result["sustained"]["outcome"] == "failed" and result["sustained"]["reason"] == f"{kind.value}: it failed"
    trials = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    assert trials[result["best"]["trial_number"]]["state"] == "complete"
    assert (
        f"the long run after the verdict failed ({kind.value}: it failed)"
        in quick_client.get(f"/studies/{study_id}").text
    )


def test_lowered_clocks_are_what_it_shows_so_that_it_is_not_repeated(quick_client):
    runs = LongRuns()
    worker = worker_of(quick_client, runs)
    study_id = create(quick_client)
    worker.work()
    assert len(runs.leases) == 1
    assert study_of(quick_client, study_id)["result"]["sustained"]["throttle_reasons"] == ["software thermal slowdown"]


def test_workers_of_an_older_release_get_no_such_run_and_the_answer_says_so(quick_client):
    runs = LongRuns()
    kinds = tuple(kind for kind in TASK_KINDS if kind != "sustained")
    worker = worker_of(quick_client, runs, task_kinds=kinds)
    study_id = create(quick_client)
    worker.work()
    result = study_of(quick_client, study_id)["result"]
    assert runs.leases == [] and result["verdict"] == "confirmed"
    assert result["sustained"]["outcome"] == "left_out" and "no live worker" in result["sustained"]["reason"]


def test_a_budget_without_room_leaves_it_out(quick_client):
    runs = LongRuns()
    worker = worker_of(quick_client, runs)
    study_id = create(quick_client, budget=STUDY["budget"] | {"max_gpu_seconds": 60.0})
    worker.work()
    result = study_of(quick_client, study_id)["result"]
    assert runs.leases == [] and "budget.max_gpu_seconds (60) leaves" in result["sustained"]["reason"]


@pytest.mark.parametrize("budget", [{}, {"sustained_run_s": 0}])
def test_cpu_ranks_make_none_by_default(quick_client, budget):
    runs = LongRuns()
    worker = worker_of(quick_client, runs)
    study_id = create(quick_client, budget={"max_trials": 8, "resume_check": False} | budget)
    worker.work()
    assert runs.leases == [] and study_of(quick_client, study_id)["result"]["sustained"] is None


def work_until(worker, purpose_is, ends_in_s):
    """Report all runs that a worker with a time limit gets; returns the first whose task satisfies `purpose_is`."""
    for _ in range(100):
        answer = worker.post("/v1/leases", {"wait_s": 0, "ends_in_s": ends_in_s})
        answer.raise_for_status()
        if answer.status_code == 204:
            return None
        lease = Lease.model_validate(answer.json())
        if purpose_is(lease.task):
            return lease
        worker.do(lease)
    raise AssertionError("still work")


ENDS_SOON = {"budget": STUDY["budget"] | {"sustained_run_s": LONG_SECONDS}}


@pytest.mark.wide_on_postgres
def test_a_worker_whose_job_ends_before_it_leaves_it_out_and_the_answer_is_there_at_once(client):
    runs = LongRuns()
    worker = worker_of(client, runs)
    study_id = create(client, **ENDS_SOON)
    assert work_until(worker, lambda task: False, ends_in_s=900.0) is None
    study = study_of(client, study_id)
    assert (study["state"], study["result"]["verdict"], runs.leases) == ("complete", "confirmed", [])
    sustained = study["result"]["sustained"]
    assert sustained["outcome"] == "left_out" and "allocation ends before it could finish" in sustained["reason"]
    assert study["reason_code"] != "worker_ends_too_soon"


def test_another_live_worker_has_some_seconds_to_take_the_run_and_no_longer(quick_client, clock):
    worker, other = worker_of(quick_client, LongRuns()), worker_of(quick_client, LongRuns(), name="other")
    study_id = create(quick_client, **ENDS_SOON)
    assert work_until(worker, lambda task: False, ends_in_s=900.0) is None
    study = study_of(quick_client, study_id)
    assert study["state"] == "running" and study["reason_code"] != "worker_ends_too_soon"
    clock.turn(31)
    assert work_until(other, lambda task: False, ends_in_s=900.0) is None
    study = study_of(quick_client, study_id)
    assert study["state"] == "complete" and study["result"]["sustained"]["outcome"] == "left_out"


def test_a_live_worker_with_more_time_makes_the_run(quick_client):
    worker, other = worker_of(quick_client, LongRuns()), worker_of(quick_client, LongRuns(), name="other")
    study_id = create(quick_client, **ENDS_SOON)
    assert work_until(worker, lambda task: False, ends_in_s=900.0) is None
    assert other.work() == 1
    assert study_of(quick_client, study_id)["result"]["sustained"]["outcome"] == "measured"


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_study_cancelled_during_it_completes_with_its_known_answer(quick_client, is_paused):
    worker = worker_of(quick_client, LongRuns())
    study_id = create(quick_client, budget=STUDY["budget"] | {"profile": True})
    lease = work_until(worker, is_long, ends_in_s=None)
    if is_paused:
        quick_client.post(f"/v1/studies/{study_id}:pause").raise_for_status()
    study = quick_client.post(f"/v1/studies/{study_id}:cancel").raise_for_status().json()
    assert (study["state"], study["result"]["verdict"]) == ("complete", "confirmed")
    sustained = study["result"]["sustained"]
    assert sustained["outcome"] == "left_out" and "cancelled by its user" in sustained["reason"]
    assert worker.report(lease, hot(100.0)).status_code == 409, "its run was taken from the worker"
    assert worker.lease() is None, "the user wants no further run, such as a trace"
    assert quick_client.get(f"/v1/studies/{study_id}/best").status_code == 200


def test_a_study_cancelled_before_its_answer_is_known_is_cancelled(quick_client):
    worker = worker_of(quick_client, LongRuns())
    study_id = create(quick_client)
    assert work_until(
        worker, lambda task: study_of(quick_client, study_id)["phase"] == "final_comparison", ends_in_s=None
    )
    study = quick_client.post(f"/v1/studies/{study_id}:cancel").raise_for_status().json()
    assert (study["state"], study["result"]) == ("cancelled", None)


def set_quota(client, gpu_seconds):
    quotas = {"gpu_seconds_per_day": gpu_seconds}
    client.put("/v1/projects/default", json={"quotas": quotas}).raise_for_status()


def check_left_out_for_quota(client, study_id):
    study = study_of(client, study_id)
    assert (study["state"], study["result"]["verdict"]) == ("complete", "confirmed")
    sustained = study["result"]["sustained"]
    assert sustained["outcome"] == "left_out" and "gpu_seconds_per_day" in sustained["reason"]


def test_a_daily_quota_that_ends_before_it_does_not_delay_the_answer(quick_client):
    worker = worker_of(quick_client, LongRuns())
    study_id = create(quick_client)
    for _ in range(100):
        set_quota(quick_client, None)
        lease = worker.lease()
        assert not is_long(lease.task)
        set_quota(quick_client, 1)
        worker.do(lease)
        if study_of(quick_client, study_id)["state"] == "complete":
            break
    check_left_out_for_quota(quick_client, study_id)


def test_a_daily_quota_used_up_while_it_waits_does_not_delay_the_answer(quick_client):
    worker = worker_of(quick_client, LongRuns())
    study_id = create(quick_client)
    assert work_until(worker, is_long, ends_in_s=None) is not None
    worker.register()
    set_quota(quick_client, 1)
    assert worker.lease() is None
    check_left_out_for_quota(quick_client, study_id)
