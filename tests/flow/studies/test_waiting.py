"""Studies that wait for a worker: what they need can be read, they begin when it comes, and give up at their deadline."""

import json
import time
from pathlib import Path

import httpx
import pytest
import yaml

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.service.studies import wait_for_worker
from shardtune.service.workers import hardware_shape
from shardtune.tuner.prediction import catalogue
from tests.support.service import run_history
from tests.support.service.local_client import local_client
from tests.support.service.page_reader import page
from tests.support.service.replica import Replica
from tests.support.service.scenarios import bearer, best, create, make_key
from tests.support.service.simulated_worker import CLUSTER, FINGERPRINT, MODEL_SUMMARY, SPEC, SimulatedWorker, quietly

DEPLOY = Path(__file__).parents[3] / "deploy"
LATER = {"cluster": CLUSTER.model_dump(mode="json"), "wait_for_worker_s": 3600.0}


def read(client, study_id):
    return client.get(f"/v1/studies/{study_id}").json()


def needs(client):
    return client.get("/v1/demand").json()["needs"]


def test_a_study_waits_says_what_it_needs_and_begins_with_its_worker(client, clock):
    context = client.app.state.context
    study_id = create(client, **LATER)
    assert (read(client, study_id)["state"], read(client, study_id)["started_at"]) == ("waiting", None)
    (need,) = needs(client)
    assert (need["cluster"], need["waiting"], need["running"], need["live_workers"]) == (
        LATER["cluster"],
        [study_id],
        0,
        0,
    )
    assert (need["waiting_since"], need["until"]) == ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z")
    metrics = client.get("/metrics").text
    assert 'shardtune_demand{device="cpu",gpu="cpu",gpus_per_node="2",nodes="1",state="waiting"} 1.0' in metrics
    assert "Waiting for a worker with 2 CPU ranks" in page(client, f"/studies/{study_id}")
    clock.turn(600)
    assert wait_for_worker.begin_or_fail_waiting(context) == 0
    worker = SimulatedWorker(client, behave=quietly).register()
    assert worker.lease() is None, "whoever looks for workers begins it"
    assert (wait_for_worker.begin_or_fail_waiting(context), wait_for_worker.begin_or_fail_waiting(context)) == (1, 0)
    assert read(client, study_id)["started_at"] == "2026-01-01T00:10:00Z"
    assert (needs(client)[0]["waiting"], needs(client)[0]["running"], needs(client)[0]["live_workers"]) == ([], 1, 1)
    worker.work()
    assert read(client, study_id)["state"] == "complete" and needs(client) == []
    reported = [event["type"] for event in client.get(f"/v1/studies/{study_id}/events").json()["events"]]
    assert reported[:2] == ["study.created", "study.started"]
    assert run_history.faults(context.db) == []


def test_its_deadline_ends_it_and_the_time_it_waited_is_not_of_its_budget(quick_client, context, clock):
    late = create(quick_client, **LATER | {"wait_for_worker_s": 60.0})
    patient = create(quick_client, **LATER, budget={"max_wall_seconds": 300, "max_trials": 8})
    clock.turn(61)
    assert wait_for_worker.begin_or_fail_waiting(context) == 1
    text = read(quick_client, late)
    assert text["state"] == "failed" and "within 60 s; start one there with `shardtune worker`" in text["reason"]
    clock.turn(900)
    worker = SimulatedWorker(quick_client, behave=quietly).register()
    assert wait_for_worker.begin_or_fail_waiting(context) == 1
    worker.work()
    assert sum(read(quick_client, patient)["trials"].values()) == 8


def test_without_the_wish_to_wait_a_worker_must_be_there_and_local_cannot_wait(quick_client):
    rejected = quick_client.post("/v1/studies", json=SPEC | LATER | {"wait_for_worker_s": None})
    assert (rejected.status_code, rejected.json()["code"]) == (422, "no_worker")
    unclear = quick_client.post("/v1/studies", json=SPEC | {"wait_for_worker_s": 60})
    assert unclear.json()["code"] == "no_worker" and "spelt out, such as 8xh100" in unclear.json()["detail"]


def test_what_waits_can_be_cancelled_but_not_paused_and_counts_as_running(quick_client):
    quick_client.put("/v1/projects/default", json={"quotas": {"running_studies": 1}}).raise_for_status()
    study_id = create(quick_client, **LATER)
    assert quick_client.post("/v1/studies", json=SPEC | LATER).json()["code"] == "quota_running_studies"
    assert quick_client.post(f"/v1/studies/{study_id}:pause").json()["code"] == "study_waiting"
    assert quick_client.post(f"/v1/studies/{study_id}:cancel").json()["state"] == "cancelled"
    assert needs(quick_client) == []


def test_who_asks_to_resolve_gets_the_one_study_that_waits(quick_client):
    body = {"study": SPEC | LATER}
    first, second = (quick_client.post("/v1/best:resolve", json=body) for _ in range(2))
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["study"]["state"] == "waiting"
    assert first.json()["study"]["study_id"] == second.json()["study"]["study_id"]


def test_a_worker_that_drains_or_is_another_s_is_not_waited_for(quick_client, context):
    operator = local_client(quick_client.app, headers=bearer(make_key(quick_client, "admin")))
    ours, theirs = (
        local_client(quick_client.app, headers=bearer(make_key(operator, "admin", project=name))) for name in "ab"
    )
    study_id = ours.post("/v1/studies", json=SPEC | LATER).json()["study_id"]
    SimulatedWorker(theirs, name="theirs").register()
    drained = SimulatedWorker(ours, name="drained").register()
    (row,) = [row for row in ours.get("/v1/workers").json()["workers"] if row["name"] == drained.name]
    ours.post(f"/v1/workers/{row['worker_id']}:drain").raise_for_status()
    assert wait_for_worker.begin_or_fail_waiting(context) == 0
    assert needs(theirs) == [] and needs(ours)[0]["waiting"] == [study_id], "of its own project each sees the needs"
    assert needs(ours)[0]["live_workers"] == 0 and needs(operator)[0]["live_workers"] == 0


def test_a_killed_service_goes_on_waiting_and_begins_it(sqlite_url, tmp_path):
    with Replica(sqlite_url, tmp_path / "log", sweep_s=0.1) as replica:
        replica.wait_until_ready()
        with httpx.Client(base_url=replica.url, timeout=30, trust_env=False) as http:
            study_id = create(http, **LATER)
            replica.kill()
            replica.start()
            replica.wait_until_ready()
            assert needs(http)[0]["waiting"] == [study_id]
            worker = SimulatedWorker(http).register()
            until_s = time.monotonic() + 30
            while read(http, study_id)["state"] == "waiting":
                assert time.monotonic() < until_s
                time.sleep(0.05)
            assert worker.lease().study_id == study_id


H100 = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=79.6, host_memory_gib=2100)
"""Cluster as a worker detects it."""


@pytest.mark.wide_on_postgres
def test_a_cluster_named_by_the_catalogue_is_that_of_a_worker_which_has_its_drivers_name(client):
    context = client.app.state.context
    study_id = create(client, cluster="8xh100", wait_for_worker_s=3600.0)
    SimulatedWorker(client, cluster=H100).register()
    assert wait_for_worker.begin_or_fail_waiting(context) == 1 and read(client, study_id)["state"] == "running"


@pytest.mark.wide_on_postgres
def test_a_named_cluster_takes_over_the_host_memory_that_its_worker_has(client):
    """A name says nothing about it: hosts of eight H100 have 1 to 2 TiB."""
    context = client.app.state.context
    waiting = create(client, cluster="8xh100", wait_for_worker_s=3600.0)
    worker = SimulatedWorker(
        client, behave=quietly, cluster=H100.model_copy(update={"host_memory_gib": 1000.0})
    ).register()
    assert wait_for_worker.begin_or_fail_waiting(context) == 1
    at_once = create(client, **LATER | {"cluster": "8xh100"})
    assert [read(client, study)["cluster"]["host_memory_gib"] for study in (waiting, at_once)] == [1000.0, 1000.0]
    worker.work()
    assert best(client, model="llama-tiny", cluster="8xh100", workload=json.dumps(SPEC["workload"]), match="exact")
    stated = H100.model_dump(mode="json")
    for memory in (2100.0, 2048.0):
        rejected = client.post("/v1/studies", json=SPEC | {"cluster": stated | {"host_memory_gib": memory}})
        assert rejected.status_code == 422 and rejected.json()["code"] == "no_worker", "a stated host memory is meant"
    for study in (waiting, at_once):
        (note,) = [note for note in read(client, study)["warnings"] if note.startswith("host memory")]
        assert "1,000 GiB" in note and "assumes 2,048" in note


@pytest.mark.wide_on_postgres
def test_the_first_run_of_a_study_goes_to_no_smaller_machine(client):
    """Otherwise its fingerprint would be that of a machine for which the study does not predict."""
    large = SimulatedWorker(client, name="large", cluster=H100).register()
    small_host = H100.model_copy(update={"host_memory_gib": 500.0})
    small = SimulatedWorker(client, name="small", cluster=small_host).register()
    study_id = create(client, **LATER | {"cluster": "8xh100"})
    memory = read(client, study_id)["cluster"]["host_memory_gib"]
    leases = [worker.lease() for worker in (small, large)]
    assert [lease is not None for lease in leases] == ([False, True] if memory > 500 else [True, False])


@pytest.mark.parametrize(
    ("driver", "is_same"),
    [
        ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", False),
        ("NVIDIA H100 PCIe", False),
        ("NVIDIA H100 NVL", False),
    ],
)
def test_a_gpu_is_the_named_one_only_as_a_whole_and_in_the_same_variant(driver, is_same):
    named = catalogue.parse_cluster("8xh100")
    assert hardware_shape.has_same_shape(H100.model_copy(update={"gpu": driver}), named) is is_same


def test_neighbours_of_a_product_are_other_gpus():
    for name, driver in (("8xl40s", "NVIDIA L40"), ("8xh200", "NVIDIA H200 NVL")):
        other = H100.model_copy(update={"gpu": driver})
        assert not hardware_shape.has_same_shape(other, catalogue.parse_cluster(name))


def test_demand_of_a_pool_is_that_of_the_studies_which_its_workers_suit(client):
    def demand(**parameters):
        answer = client.get("/v1/demand", params=parameters).json()
        return answer["studies"], answer["without_worker"], len(answer["needs"])

    create(client, **LATER)
    create(client, cluster="8xh100", wait_for_worker_s=3600.0)
    create(client, cluster="4xh100", wait_for_worker_s=3600.0)
    larger = {"sequence_length": 64, "global_batch": 16}
    create(client, cluster="2x8xh100", workload=larger, wait_for_worker_s=3600.0)
    assert (demand(), demand(cluster="8xh100"), demand(cluster="8xa100-80gb")) == ((4, 4, 4), (2, 2, 2), (0, 0, 0))
    assert demand(cluster="4xh100") == (1, 1, 1)
    SimulatedWorker(client, cluster=H100).register()
    wait_for_worker.begin_or_fail_waiting(client.app.state.context)
    assert demand(cluster="8xh100") == (2, 0, 2), "a running study still needs its worker"


@pytest.mark.wide_on_postgres
def test_demand_of_a_pool_leaves_out_models_that_its_workers_do_not_allow(client):
    own = {"entry_point": "mine"}
    create(client, **LATER | {"model": own, "cluster": H100.model_dump(mode="json")})
    counts = [
        client.get("/v1/demand", params={"cluster": "8xh100", **allowed}).json()["studies"]
        for allowed in ({}, {"allow_model": ["other", "mine"]}, {"allow_script": ["mine"]})
    ]
    assert counts == [0, 1, 0] and client.get("/v1/demand").json()["studies"] == 1


@pytest.mark.wide_on_postgres
def test_each_study_counts_as_without_worker_by_what_it_trains(client):
    named = LATER | {"cluster": "8xh100"}
    workload = SPEC["workload"] | {"precision": "bf16-mixed"}
    SimulatedWorker(client, cluster=H100).register()
    create(client, **named | {"workload": workload})
    create(client, **named | {"workload": workload | {"float8": "tensorwise"}})
    answer = client.get("/v1/demand").json()
    assert (answer["studies"], answer["without_worker"]) == (2, 1)
    (need,) = answer["needs"]
    assert need["live_workers"] == 1


@pytest.mark.wide_on_postgres
def test_demand_of_a_pool_leaves_out_what_its_image_lacks_for_an_hour(client, clock):
    workload = SPEC["workload"] | {"precision": "bf16-mixed", "float8": "tensorwise"}
    SimulatedWorker(client, "earlier", cluster=H100).register()
    clock.turn(10)
    create(client, **LATER | {"cluster": "8xh100", "workload": workload})
    pool = {"cluster": "8xh100"}
    counts = [client.get("/v1/demand", params=pool).json()["studies"]]
    SimulatedWorker(client, "of the pool", cluster=H100).register()
    for seconds in (0, 3500, 200):
        clock.turn(seconds)
        counts.append(client.get("/v1/demand", params=pool).json()["studies"])
    assert counts == [1, 0, 0, 1]
    assert client.get("/v1/demand").json()["studies"] == 1, "people see that it needs a worker"


@pytest.mark.wide_on_postgres
def test_a_worker_that_cannot_execute_a_study_is_named_after_one_that_ended_too_soon(client):
    """Otherwise an autoscaler starts workers for the study that get none of its runs."""
    first = SimulatedWorker(client, cluster=H100).register()
    study_id = create(client, cluster="8xh100")
    first.report(first.lease(), MODEL_SUMMARY).raise_for_status()
    assert first.post("/v1/leases", {"wait_s": 0, "ends_in_s": 1}).status_code == 204
    assert read(client, study_id)["reason_code"] == "worker_ends_too_soon"
    pool = {"cluster": "8xh100"}
    assert client.get("/v1/demand", params=pool).json()["studies"] == 1
    other = FINGERPRINT.model_copy(update={"torch": "2.99.0"})
    second = SimulatedWorker(client, "other", cluster=H100, fingerprint=other).register()
    assert second.lease() is None
    shown = read(client, study_id)
    assert shown["reason_code"] == "waits_for_worker" and "torch 2.99.0 instead of" in shown["reason"]
    assert client.get("/v1/demand", params=pool).json()["studies"] == 0
    assert first.post("/v1/leases", {"wait_s": 0, "ends_in_s": 1}).status_code == 204
    assert read(client, study_id)["reason_code"] == "waits_for_worker"
    assert first.lease() is not None
    assert read(client, study_id)["reason"] is None


@pytest.mark.wide_on_postgres
def test_a_study_that_considers_a_recipe_begins_on_a_worker_that_has_its_package(client, clock):
    context = client.app.state.context
    later = LATER | {"cluster": "8xh100", "consider": ["fp8"]}
    later["workload"] = SPEC["workload"] | {"precision": "bf16-mixed"}
    plain = SimulatedWorker(client, "plain", cluster=H100).register()
    patient, impatient = create(client, **later), create(client, **later | {"wait_for_worker_s": 60.0})
    clock.turn(30)
    plain.register()
    assert wait_for_worker.begin_or_fail_waiting(context) == 0
    clock.turn(31)
    plain.register()
    assert wait_for_worker.begin_or_fail_waiting(context) == 1
    failed = read(client, impatient)
    assert (failed["state"], failed["reason_code"]) == ("failed", "no_worker")
    assert "plain lacks packages of consider (fp8); install shardtune[fp8] there" in failed["reason_details"]
    capable = SimulatedWorker(client, "capable", cluster=H100, float8=("tensorwise", "rowwise")).register()
    assert wait_for_worker.begin_or_fail_waiting(context) == 1
    assert plain.lease() is None
    shown = read(client, patient)
    assert shown["reason_code"] == "waits_for_worker" and "plain lacks packages" in shown["reason"]
    assert capable.lease().study_id == patient
    assert read(client, patient)["reason"] is None


@pytest.mark.wide_on_postgres
def test_a_worker_that_comes_back_with_less_memory_is_named_with_the_figures(client):
    first = SimulatedWorker(client, cluster=H100).register()
    study_id = create(client, cluster="8xh100")
    less = H100.model_copy(update={"host_memory_gib": 1800.0})
    returned = SimulatedWorker(client, first.name, cluster=less).register()
    assert returned.lease() is None
    shown = read(client, study_id)
    assert shown["reason_code"] == "waits_for_worker"
    assert "host 1800 GiB" in shown["reason"] and "more than 5 % less memory" in shown["reason"]
    assert "more than 5 % less memory" in page(client, f"/studies/{study_id}")
    assert SimulatedWorker(client, first.name, cluster=H100).register().lease().study_id == study_id
    assert read(client, study_id)["reason"] is None


@pytest.mark.wide_on_postgres
def test_demand_of_a_pool_leaves_out_a_study_whose_measurements_do_not_compare(client):
    first = SimulatedWorker(client, cluster=H100).register()
    study_id = create(client, cluster="8xh100")
    assert first.lease().study_id == study_id
    first.register()
    other = FINGERPRINT.model_copy(update={"torch": "2.99.0"})
    second = SimulatedWorker(client, "other", cluster=H100, fingerprint=other).register()
    pool = {"cluster": "8xh100"}
    assert client.get("/v1/demand", params=pool).json()["studies"] == 1
    assert second.lease() is None
    assert read(client, study_id)["reason_code"] == "waits_for_worker"
    assert client.get("/v1/demand", params=pool).json()["studies"] == 0
    assert client.get("/v1/demand").json()["studies"] == 1, "people see that it needs a worker"


@pytest.mark.wide_on_postgres
def test_demand_of_a_pool_leaves_out_projects_that_have_used_up_their_day(client, clock):
    worker = SimulatedWorker(client, cluster=H100).register()
    create(client, cluster="8xh100")
    assert worker.lease() is not None
    pool = {"cluster": "8xh100"}
    assert client.get("/v1/demand", params=pool).json()["studies"] == 1
    client.put("/v1/projects/default", json={"quotas": {"gpu_seconds_per_day": 1}}).raise_for_status()
    clock.turn(10)
    assert client.get("/v1/demand", params=pool).json()["studies"] == 0


@pytest.mark.wide_on_postgres
def test_a_pool_that_is_no_cluster_is_rejected_with_the_remedy(client):
    for parameters, words in (({"cluster": "8xunobtainium"}, "catalogue"), ({"allow_model": "mine"}, "such as 8xh100")):
        answer = client.get("/v1/demand", params=parameters)
        assert answer.status_code == 422 and words in answer.text


@pytest.mark.wide_on_postgres
def test_the_trigger_of_deploy_reads_the_number_of_studies_that_its_workers_could_run(client):
    _, job = yaml.safe_load_all((DEPLOY / "kubernetes/overlays/autoscaled-workers/workers.yaml").read_text())
    (trigger,) = job["spec"]["triggers"]
    address = trigger["metadata"]["url"].removeprefix("http://shardtune.shardtune.svc:8470")
    pool = job["spec"]["jobTargetRef"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert f"cluster={pool['nvidia.com/gpu']}x" in address

    def metric():
        return client.get(address).json()[trigger["metadata"]["valueLocation"]]

    before = metric()
    create(client, cluster="8xh100", wait_for_worker_s=3600.0)
    assert (before, metric()) == (0, 1)
