"""A whole study, driven over HTTP by a simulated worker."""

import pytest

from shardtune.api_schemas.machines.conditions import Conditions, DeviceSeen
from shardtune.db.session import Database
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.support.service.local_client import local_client
from tests.support.service.scenarios import THREE_BACKENDS, create
from tests.support.service.simulated_worker import SimulatedWorker, measurement, quietly, speed_of

# What these tests count rests on two near candidates, which eight trials of this space have.


def test_study_ends_confirmed_when_the_challenger_is_faster(client):
    worker = SimulatedWorker(client).register()
    study_id = create(client, **THREE_BACKENDS)
    runs = worker.work()
    study = client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete", study["reason"]
    assert runs == 1 + 8 + client.get(f"/v1/studies/{study_id}/best").json()["final_comparison"]["runs"]
    result = client.get(f"/v1/studies/{study_id}/best").json()
    assert result["verdict"] == "confirmed"
    assert result["best"]["config"]["strategy"]["kind"] == "fsdp2"
    assert result["speedup"]["pairs"] == 7 and result["speedup"]["ci95"][0] > 1
    # The four defaults once, for the baseline; two candidates twice beside the baseline, and seven pairs.
    assert result["final_comparison"]["runs"] == 4 + 6 + 14 and result["final_comparison"]["gpu_seconds"] == 6.0 * 24
    assert result["best"]["runs"] == 9 and result["baseline"]["runs"] == 10
    assert sum(study["trials"].values()) == 8
    assert study["fingerprint"]["torch"] == "2.13.0"
    assert study["gpu_seconds"] == 6.0 * runs


def test_final_comparison_screens_in_blocks_and_then_pairs(quick_client):
    worker = SimulatedWorker(quick_client).register()
    study_id = create(quick_client, **THREE_BACKENDS)
    order = []
    while (lease := worker.lease()) is not None:
        order.append(lease.trial_number)
        worker.do(lease)
    fresh, result = order[9:], quick_client.get(f"/v1/studies/{study_id}/best").json()
    candidates = result["final_comparison"]["candidates"]
    best, baseline = result["best"]["trial_number"], result["baseline"]["trial_number"]
    trials = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    defaults = {trial["number"] for trial in trials if trial["origin"] == "default"}
    assert set(fresh[:4]) == defaults and result["baseline"]["trial_number"] in defaults
    assert len(candidates) == 2 and sorted(fresh[4:7]) == sorted(fresh[7:10]) == sorted([baseline, *candidates])
    pairs = list(zip(fresh[10::2], fresh[11::2], strict=True))
    assert all(set(pair) == {best, baseline} for pair in pairs)
    assert [run["comparison_block"] for run in trials[best]["runs"]] == [None, *range(1, 10)]


@pytest.mark.wide_on_postgres
def test_challenger_that_was_only_lucky_does_not_win(client):
    def lucky(lease, task):
        """Fast in the search; in the final comparison everyone is alike."""
        observed.append(lease.run_id)
        return measurement(speed_of(task.config) if len(observed) <= 8 else 1000.0)

    observed = []
    worker = SimulatedWorker(client, behave=lucky).register()
    study_id = create(client)
    worker.work()
    result = client.get(f"/v1/studies/{study_id}/best").json()
    assert result["verdict"] == "not_faster"
    assert result["best"] == result["baseline"]
    assert result["candidate"]["trial_number"] != result["baseline"]["trial_number"]


def test_the_faster_default_is_the_baseline_though_its_search_run_was_disturbed(quick_client):
    def behave(lease, task):
        """The fastest default is at a third of its speed once, in the search."""
        runs.append(lease.trial_number)
        is_first = runs.count(lease.trial_number) == 1 and task.config.micro_batch == 1
        return measurement(speed_of(task.config) / (3 if is_first and task.config.backend == "fsdp2" else 1))

    runs = []
    worker = SimulatedWorker(quick_client, behave=behave).register()
    study_id = create(quick_client, **THREE_BACKENDS)
    worker.work()
    result = quick_client.get(f"/v1/studies/{study_id}/best").json()
    assert result["baseline"]["config"] | {"micro_batch": 1} == result["baseline"]["config"]
    assert result["baseline"]["config"]["strategy"]["kind"] == "fsdp2"
    assert {row["micro_batches"][0] for row in result["against_defaults"]} == {1}


def test_a_disturbed_run_is_repeated_and_counts_only_when_the_machine_does_not_get_quiet(quick_client):
    def behave(lease, task):
        """A program beside it takes two of its first three attempts at trial 0, and all at trial 1."""
        run = measurement(speed_of(task.config))
        is_disturbed = lease.trial_number == 1 or (lease.trial_number == 0 and lease.attempt < 3)
        foreign = Conditions(foreign_cpu_cores=1.5 if is_disturbed else 0.1)
        return run.model_copy(update={"conditions": foreign})

    worker = SimulatedWorker(quick_client, behave=behave).register()
    study_id = create(quick_client, budget={"max_trials": 4})
    worker.do(worker.lease())
    for _ in range(3 + 4 + 1):
        worker.do(worker.lease())
    trials = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    ends = [[attempt["end"] for attempt in trial["runs"][0]["attempts"]] for trial in trials]
    assert ends == [["disturbed"] * 2 + ["complete"], ["disturbed"] * 3 + ["complete"], ["complete"]]
    first, second = (trial["runs"][0]["measurement"] for trial in trials[:2])
    assert first["disturbed"] is None and "1.5 of 2 cores" in second["disturbed"]
    untouched = create(quick_client, budget={"max_trials": 4, "repeat_disturbed": 0})
    assert quick_client.get(f"/v1/studies/{untouched}").json()["spec"]["budget"]["repeat_disturbed"] == 0


def test_a_throttled_run_is_repeated_once_and_a_machine_that_always_throttles_gets_its_answer(quick_client):
    def behave(lease, task):
        """Heat lowers the clocks in every run of this machine; at the first trial, in one look of eight."""
        throttled = {"throttled_fraction": 0.125 if lease.trial_number == 0 else 0.9, "samples": 8}
        device = DeviceSeen(uuid="GPU-1", memory_before_gib=0, power_capped_fraction=None, **throttled)
        return measurement(speed_of(task.config)).model_copy(update={"conditions": Conditions(devices=(device,))})

    worker = SimulatedWorker(quick_client, behave=behave).register()
    study_id = create(quick_client, budget={"max_trials": 4}, **THREE_BACKENDS)
    worker.work()
    trials = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    ends = [[attempt["end"] for attempt in trial["runs"][0]["attempts"]] for trial in trials[:2]]
    assert ends == [["complete"], ["disturbed", "complete"]]
    assert trials[1]["runs"][0]["measurement"]["disturbed"] is None
    study = quick_client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete", study["reason"]
    assert study["result"]["verdict"] in ("confirmed", "not_faster", "undecided")


def test_a_block_stays_on_the_worker_that_began_it(quick_client, clock):
    first, other = (SimulatedWorker(quick_client, name=f"sim-{i}").register() for i in range(2))
    study_id = create(quick_client, cluster=first.inventory.cluster.model_dump(), **THREE_BACKENDS)
    for _ in range(9 + 4 + 1):
        first.do(first.lease())
    assert other.lease() is None
    for _ in range(5):
        first.do(first.lease())
    other.do(other.lease())
    clock.turn(3600)
    assert first.work() > 0, "the other is gone, and its block does not count"
    result = quick_client.get(f"/v1/studies/{study_id}/best").json()
    assert result["verdict"] == "confirmed" and result["final_comparison"]["runs"] == 4 + 6 + 2 + 14


def test_a_final_comparison_goes_on_where_a_killed_service_left_it(quick_client, sqlite_url, spare_app, clock):
    """Each of its runs is leased from a new service on the same database; the order is that of a service that lives."""
    worker = SimulatedWorker(quick_client).register()
    study_id, runs = create(quick_client, **THREE_BACKENDS), 0
    for _ in range(1 + 8):
        worker.do(worker.lease())
    while lease_of_a_new_service(sqlite_url, spare_app, clock):
        runs += 1
    result = quick_client.get(f"/v1/studies/{study_id}/best").json()
    assert result["verdict"] == "confirmed" and result["final_comparison"]["runs"] == runs == 4 + 6 + 14


def lease_of_a_new_service(url, app, clock):
    """Have one run done for a service that begins and ends with it; whether there was one."""
    app.state.context = Context(
        Database(url), Settings(database_url=url, sweep_s=3600, fingerprint_check_s=3600), clock
    )
    with local_client(app) as client:
        worker = SimulatedWorker(client).register()
        lease = worker.lease()
        if lease is not None:
            worker.do(lease)
        return lease is not None


def test_users_baseline_runs_first_and_is_what_is_beaten(quick_client):
    worker = SimulatedWorker(quick_client).register()
    baseline = {"strategy": {"kind": "zero", "stage": 1}, "micro_batch": 2}
    study_id = create(quick_client, baseline=baseline)
    worker.work()
    trials = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    assert trials[0]["origin"] == "baseline"
    result = quick_client.get(f"/v1/studies/{study_id}/best").json()
    assert result["baseline"]["trial_number"] == 0 and result["verdict"] == "confirmed"


def test_export_of_best_and_of_a_trial(quick_client):
    worker = SimulatedWorker(quick_client, behave=quietly).register()
    study_id = create(quick_client)
    assert quick_client.get(f"/v1/studies/{study_id}/export").status_code == 409
    worker.work()
    for which in ("best", "baseline", "0"):
        answer = quick_client.get(f"/v1/studies/{study_id}/export", params={"which": which})
        assert {"config.json", "launch.sh"} <= answer.json()["files"].keys()
    assert quick_client.get(f"/v1/studies/{study_id}/export", params={"which": "99"}).status_code == 404


@pytest.mark.wide_on_postgres
def test_two_workers_never_run_the_same_configuration(client):
    workers = [SimulatedWorker(client, f"sim-{i}", quietly).register() for i in range(2)]
    study_id = create(client, cluster=workers[0].inventory.cluster.model_dump())
    idle = 0
    while idle < 3:
        leases = [worker.lease() for worker in workers]
        for worker, lease in zip(workers, leases, strict=True):
            if lease is not None:
                worker.do(lease)
        idle = idle + 1 if leases == [None, None] else 0
    study = client.get(f"/v1/studies/{study_id}").json()
    trials = client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    assert study["state"] == "complete", study["reason"]
    assert len({str(trial["config"]) for trial in trials}) == len(trials) == 8
