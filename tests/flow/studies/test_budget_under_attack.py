"""Limits of a whole study under odd numbers, several workers, lost workers, disturbed runs and hasty extensions."""

import pytest

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.trials.leases import TASK_KINDS
from shardtune.service.lifecycle import expiry
from tests.support.service import run_history
from tests.support.service.page_reader import page
from tests.support.service.scenarios import THREE_BACKENDS, create
from tests.support.service.simulated_worker import SimulatedWorker, measurement, speed_of, well

BASELINE = {**THREE_BACKENDS, "baseline": {"strategy": {"kind": "ddp"}, "micro_batch": 1}}
RUN_GPU_S = 6.0
"""GPU-seconds of each run: 3 s on two ranks."""


def read(client, study_id):
    return client.get(f"/v1/studies/{study_id}").raise_for_status().json()


def extend(client, study_id, **more):
    return client.post(f"/v1/studies/{study_id}:extend", json=more)


def begun(client, behave=well, **budget):
    """A worker that knows resume checks, and a study with this budget."""
    worker = SimulatedWorker(client, behave=behave, task_kinds=TASK_KINDS).register()
    return worker, create(client, **BASELINE, budget=budget)


def notes_of(study):
    return " ".join(study["result"]["notes"])


@pytest.mark.parametrize("field", ["max_gpu_seconds", "max_wall_seconds"])
@pytest.mark.parametrize("value", [0, -1, "NaN", "1e999", True, "60"])
def test_a_limit_that_is_no_positive_number_is_rejected(quick_client, field, value):
    number = value if isinstance(value, str) and not value.isdecimal() else repr(value).replace("'", '"').lower()
    budget = f'{{"{field}": {number}}}'
    text = f'{{"model": "llama-tiny", "workload": {{"sequence_length": 64, "global_batch": 8}}, "budget": {budget}}}'
    answer = quick_client.post("/v1/studies", content=text, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422), answer.text


@pytest.mark.parametrize("limit", [1e-300, 0.5, RUN_GPU_S])
def test_a_limit_below_the_first_trial_fails_the_study_and_a_larger_one_continues_it(quick_client, limit):
    worker, study_id = begun(quick_client, max_gpu_seconds=limit)
    worker.work()
    study = read(quick_client, study_id)
    assert (study["state"], study["reason_code"]) == ("failed", "gpu_seconds_used"), study["reason"]
    assert study["gpu_seconds"] == RUN_GPU_S and not study["trials"], "the model summary alone"
    text = page(quick_client, f"/studies/{study_id}")
    assert "it would end in the same way" in text and "--add-gpu-seconds" in text
    assert extend(quick_client, study_id, add_pairs=3).json()["code"] == "nothing_to_extend"
    assert extend(quick_client, study_id, add_trials=3).json()["code"] == "nothing_to_extend"
    extend(quick_client, study_id, add_gpu_seconds=200).raise_for_status()
    worker.work()
    study = read(quick_client, study_id)
    assert study["result"]["verdict"] == "confirmed" and study["gpu_seconds"] <= RUN_GPU_S + 200


def test_a_limit_beyond_all_numbers_bounds_nothing(quick_client):
    worker, study_id = begun(quick_client, max_gpu_seconds=1e308, max_wall_seconds=1e308, max_trials=4)
    worker.work()
    assert read(quick_client, study_id)["result"]["verdict"] == "confirmed"
    assert quick_client.get(f"/studies/{study_id}").status_code == 200
    extend(quick_client, study_id, add_gpu_seconds=1e12, add_trials=1).raise_for_status()
    worker.work()
    assert read(quick_client, study_id)["state"] == "complete"


def test_a_limit_of_seven_digits_is_stated_in_full(quick_client, clock):
    def long_run(lease, task):
        clock.turn(123456)
        return measurement(speed_of(task.config)).model_copy(update={"elapsed_s": 123456.0})

    worker, study_id = begun(quick_client, long_run, max_wall_seconds=1234567.5)
    worker.work()
    study = read(quick_client, study_id)
    assert "(1234567.5)" in study["reason"] + notes_of(study) and "e+" not in study["reason"] + notes_of(study)


def test_pairs_that_are_added_twice_all_have_room(quick_client):
    """The second request came before any of the first one's pairs, and raised no limit."""
    worker, study_id = begun(quick_client, alternating(), max_gpu_seconds=60.0)
    worker.work()
    before = read(quick_client, study_id)
    ran = before["result"]["final_comparison"]["pairs"]
    extend(quick_client, study_id, add_pairs=5).raise_for_status()
    extend(quick_client, study_id, add_pairs=5).raise_for_status()
    worker.work()
    study = read(quick_client, study_id)
    assert study["result"]["final_comparison"]["pairs"] >= ran + 10, notes_of(study)
    assert study["gpu_seconds"] <= study["spec"]["budget"]["max_gpu_seconds"]


def test_pairs_that_are_added_during_the_comparison_come_on_top_of_those_that_fit(quick_client):
    worker, study_id = begun(quick_client, alternating(), max_gpu_seconds=84.0)
    while read(quick_client, study_id)["phase"] != "final_comparison":
        worker.do(worker.lease())
    extended = extend(quick_client, study_id, add_pairs=2).raise_for_status().json()
    assert extended["spec"]["budget"]["max_gpu_seconds"] == 84.0 + 2 * 2 * RUN_GPU_S
    ample = extend(quick_client, study_id, add_gpu_seconds=5000).raise_for_status().json()
    worker.work(at_most=200)
    assert read(quick_client, study_id)["gpu_seconds"] <= ample["spec"]["budget"]["max_gpu_seconds"]


def test_added_pairs_that_may_wait_for_quiet_have_the_time_for_it(quick_client, clock):
    def timed(lease, task):
        clock.turn(3)
        return alternate(lease, task)

    alternate = alternating()
    worker, study_id = begun(quick_client, timed, max_wall_seconds=30.0)
    worker.work()
    assert read(quick_client, study_id)["result"]["verdict"] == "undecided"
    without = extend(quick_client, study_id, add_pairs=2, wait_for_quiet_s=600).raise_for_status().json()
    assert without["spec"]["budget"]["max_wall_seconds"] >= 600


def alternating():
    """Worker whose validation runs of a challenger are by turns slower and faster than the baseline's."""
    runs = {}

    def behave(lease, task):
        number = lease.trial_number
        runs[number] = runs.get(number, 0) + 1
        if runs[number] == 1 or number == 0:
            return measurement(speed_of(task.config))
        return measurement(900.0 if runs[number] % 2 else 1300.0)

    return behave


def test_the_page_offers_no_trials_that_the_service_would_reject(quick_client):
    def behave(lease, _task):
        return measurement(1000.0 if lease.trial_number == 0 else 950.0)

    worker, study_id = begun(quick_client, behave, max_trials=3, max_gpu_seconds=230.0)
    worker.work()
    study = read(quick_client, study_id)
    assert (study["result"]["verdict"], study["reason_code"]) == ("not_faster", "trials_used")
    assert study["gpu_seconds"] < 230.0
    rejected = extend(quick_client, study_id, add_trials=10)
    assert rejected.json()["code"] == "nothing_to_extend", rejected.text
    text = page(quick_client, f"/studies/{study_id}")
    assert "Add 10 trials" not in text and "leaves too little for more trials" in text


def test_a_disturbed_run_at_the_limit_is_not_repeated_beyond_it(quick_client, clock):
    """It was repeated up to five times, each beyond the limit."""

    def disturbed(_lease, task):
        run = measurement(speed_of(task.config))
        return run.model_copy(update={"conditions": Conditions(foreign_cpu_cores=1.5)})

    def later(lease, task):
        # Undisturbed until the comparison begins, so that the limit falls into its first pair.
        return well(lease, task) if not lease.is_exclusive else disturbed(lease, task)

    worker, study_id = begun(quick_client, later, max_gpu_seconds=44.0, max_trials=3, resume_check=False)
    worker.work()
    study = read(quick_client, study_id)
    assert study["state"] == "complete" and study["gpu_seconds"] <= 44.0 + RUN_GPU_S, study["gpu_seconds"]
    assert run_history.faults(quick_client.app.state.context.db) == []


def test_several_workers_exceed_a_limit_by_one_trial_each_at_most(quick_client):
    workers = [SimulatedWorker(quick_client, name=f"sim-{n}", task_kinds=TASK_KINDS).register() for n in range(4)]
    study_id = create(quick_client, **BASELINE, budget={"max_gpu_seconds": 150.0, "max_trials": 30})
    for _ in range(60):
        leases = [(worker, lease) for worker in workers if (lease := worker.lease()) is not None]
        if not leases:
            break
        for worker, lease in leases:
            worker.do(lease)
    study = read(quick_client, study_id)
    assert study["state"] == "complete" and study["gpu_seconds"] <= 150.0, study["gpu_seconds"]
    assert study["result"]["verdict"] == "confirmed", notes_of(study)


def test_the_time_of_a_lost_worker_counts(quick_client, clock):
    context = quick_client.app.state.context
    worker, study_id = begun(quick_client, max_gpu_seconds=150.0)
    worker.do(worker.lease())
    lease = worker.lease()
    for _ in range(10):
        clock.turn(5)
        worker.heartbeat(lease)
    clock.turn(1000)
    worker.register()
    expiry.sweep(context)
    assert read(quick_client, study_id)["gpu_seconds"] == pytest.approx(RUN_GPU_S + 100, abs=12)
    worker.work()
    study = read(quick_client, study_id)
    assert study["state"] == "complete" and study["gpu_seconds"] <= 150.0 + RUN_GPU_S
