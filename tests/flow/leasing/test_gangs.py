"""Workers over several hosts: which studies they are given, and until when."""

import json

import pytest

from shardtune.api_schemas.machines.conditions import Conditions, NodeConditions
from shardtune.api_schemas.machines.hardware import banded
from shardtune.api_schemas.machines.workers import Worker
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.measurements import Memory, NodeFigures, RankFigures
from shardtune.service.best import watch_staleness
from shardtune.service.cli.commands.workers import _worker_line
from tests.support.service.scenarios import WORKLOAD, best, fields_of
from tests.support.service.simulated_worker import (
    CLUSTER,
    FINGERPRINT,
    MODEL_SUMMARY,
    SPEC,
    SimulatedWorker,
    failure,
    measurement,
)

OVER_TWO = CLUSTER.model_copy(update={"nodes": 2})
HOSTS = {"details": {"hosts": [{"host": "n0", "interface": "eth0"}, {"host": "n1", "interface": "eth0"}]}}


def network(gbit_per_s):
    return FINGERPRINT.model_copy(update={"nodes": 2, "inter_node_gb_per_s": banded(gbit_per_s / 8)})


def gang(client, gbit_per_s=0.19, **inventory):
    inputs = {"cluster": OVER_TWO, "fingerprint": network(gbit_per_s), **HOSTS, **inventory}
    return SimulatedWorker(client, name="gang", **inputs).register()


def study_over(client, cluster, **changes):
    answer = client.post("/v1/studies", json=SPEC | {"cluster": cluster.model_dump(mode="json")} | changes)
    assert answer.status_code == 201, answer.text
    return answer.json()["study_id"]


def test_a_study_over_more_nodes_than_any_worker_has_is_rejected_with_what_there_is(quick_client):
    gang(quick_client)
    three = CLUSTER.model_copy(update={"nodes": 3}).model_dump(mode="json")
    for_six_ranks = SPEC | {"cluster": three, "workload": WORKLOAD | {"global_batch": 12}}
    rejected = quick_client.post("/v1/studies", json=for_six_ranks)
    assert (rejected.status_code, rejected.json()["code"]) == (422, "no_worker")
    assert "3 nodes × 2 × CPU ranks" in rejected.json()["detail"] and "gang with 2 nodes" in rejected.json()["detail"]
    assert "--nodes 3" in rejected.json()["detail"]


def test_a_gang_works_first_on_what_needs_all_its_hosts(quick_client):
    worker = gang(quick_client)
    small, large = study_over(quick_client, CLUSTER), study_over(quick_client, OVER_TWO)
    assert worker.lease().study_id == large
    alone = SimulatedWorker(quick_client, name="alone").register()
    assert alone.lease().study_id == small


def test_no_run_is_given_that_would_hardly_end_before_its_worker(quick_client):
    worker, study_id = gang(quick_client), study_over(quick_client, OVER_TWO)

    def ask(ends_in_s):
        return worker.post("/v1/leases", {"wait_s": 0, "ends_in_s": ends_in_s}).status_code

    assert (ask(20), ask(200)) == (204, 200)
    worker.report(worker.lease(), MODEL_SUMMARY).raise_for_status()
    assert ask(20) == 204
    waiting = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    assert [trial["state"] for trial in waiting] == ["waiting"], "made, for a worker that has the time"
    lease = worker.lease()
    assert lease.trial_number == 0
    worker.report(lease, measurement(1000)).raise_for_status()


def test_a_study_whose_workers_end_too_soon_says_so_until_one_has_the_time(quick_client):
    worker, study_id = gang(quick_client), study_over(quick_client, OVER_TWO)

    def reason():
        return quick_client.get(f"/v1/studies/{study_id}").json()["reason"]

    assert worker.post("/v1/leases", {"wait_s": 0, "ends_in_s": 20}).status_code == 204
    assert reason().startswith("waiting for a worker: gang must end in 20 s, and the next run may take ")
    assert reason().endswith("; start a worker that has more time")
    code = quick_client.get(f"/v1/studies/{study_id}").json()["reason_code"]
    assert code == "worker_ends_too_soon", "not `waits_for_worker`, for which an autoscaler starts no worker"
    worker.report(worker.lease(), MODEL_SUMMARY).raise_for_status()
    assert reason() is None
    other = SimulatedWorker(quick_client, "other", cluster=OVER_TWO, fingerprint=network(0.19)).register()
    assert worker.lease() is not None
    assert other.post("/v1/leases", {"wait_s": 0, "ends_in_s": 1}).status_code == 204
    assert reason() is None, "beside a run that executes, nobody waits"


def test_another_worker_of_the_same_kind_gets_what_is_too_long_for_one_that_ends(quick_client):
    ending = gang(quick_client)
    staying = SimulatedWorker(quick_client, "other", cluster=OVER_TWO, fingerprint=network(0.19)).register()
    study_over(quick_client, OVER_TWO)
    assert ending.post("/v1/leases", {"wait_s": 0, "ends_in_s": 5}).status_code == 204
    assert staying.lease() is not None


@pytest.mark.parametrize("times", [1, 3])
def test_a_run_whose_host_was_lost_is_given_out_again(quick_client, times):
    worker, study_id = gang(quick_client), study_over(quick_client, OVER_TWO)
    worker.report(worker.lease(), MODEL_SUMMARY).raise_for_status()
    runs = []
    for _ in range(times):
        lease = worker.lease()
        runs.append(lease.run_id)
        worker.report(lease, failure(FailureKind.NODE_LOST, "host n1: silent for 6 s")).raise_for_status()
    assert worker.lease().run_id == runs[0] and len(set(runs)) == 1
    assert quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"][0]["state"] == "running"


def test_pages_and_list_show_a_gang_s_hosts_and_a_trial_its_ranks_by_host(quick_client):
    worker, study_id = gang(quick_client), study_over(quick_client, OVER_TWO)
    worker.report(worker.lease(), MODEL_SUMMARY).raise_for_status()
    memory = Memory(peak_allocated_gib=0.5)
    observed = tuple(NodeConditions(host=f"n{n}", first_rank=2 * n, ranks=2, cpu_throttled_s=n) for n in (0, 1))
    of_host = [NodeFigures(host=f"n{n}", first_rank=2 * n, ranks=2, step_time_s=1.0, memory=memory) for n in (0, 1)]
    figures = {
        "conditions": Conditions(nodes=observed, cpu_throttled_s=1.0),
        "ranks": tuple(RankFigures(rank=rank, step_time_s=1.0, memory=memory) for rank in range(4)),
        "nodes": tuple(of_host),
    }
    worker.report(worker.lease(), measurement(1000).model_copy(update=figures)).raise_for_status()
    assert "n0 (eth0), n1 (eth0)" in quick_client.get("/workers").text
    listed = Worker.model_validate(quick_client.get("/v1/workers").json()["workers"][0])
    assert "2 × 2 CPU ranks on n0 (eth0), n1 (eth0)" in _worker_line(listed)
    page = quick_client.get(f"/studies/{study_id}/trials/0").text
    assert "Host by host" in page and "2 to 3" in page and "throttled threads for 1.00 s on n1" in page
    assert page.count("<td>n1</td>") == 3, "each of its ranks, and itself"


def test_another_network_between_the_hosts_makes_stale_by_its_bandwidth_and_a_retune_follows(client, clock):
    ran_on = Conditions(nodes=tuple(NodeConditions(host=f"n{n}", first_rank=2 * n, ranks=2) for n in (0, 1)))
    worker = gang(client)
    worker.behave = lambda _, task: measurement(1000.0 + task.config.micro_batch).model_copy(
        update={"conditions": ran_on}
    )
    study_id = study_over(client, OVER_TWO, budget={"max_trials": 4})
    worker.work()
    assert client.get(f"/v1/studies/{study_id}").json()["state"] == "complete"
    ask = {"model": "llama-tiny", "cluster": OVER_TWO.model_dump_json(), "workload": json.dumps(WORKLOAD)}
    assert best(client, **ask)["freshness"] == "fresh"
    again = gang(client, 0.095)
    watch_staleness.mark_stale_and_fresh(client.app.state.context)
    best_answer = best(client, **ask)
    assert (best_answer["freshness"], best_answer["changed_fields"]) == ("stale", ["inter_node_gb_per_s"])
    for _ in range(6):
        clock.turn(60)
        again.lease()
        watch_staleness.mark_stale_and_fresh(client.app.state.context)
    (retune,) = client.get("/v1/retunes").json()["retunes"]
    assert (retune["cause"], fields_of(retune)) == ("fingerprint", ["inter_node_gb_per_s"])
