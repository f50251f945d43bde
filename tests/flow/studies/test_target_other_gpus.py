"""Studies whose target has another kind of GPU than their worker."""

import json

from tests.support.service.scenarios import THREE_BACKENDS, WORKLOAD
from tests.support.service.simulated_worker import CLUSTER, FINGERPRINT, SPEC, SimulatedWorker, measurement, quietly

H100 = CLUSTER.model_copy(update={"device": "cuda", "gpu": "NVIDIA H100 80GB HBM3", "memory_gib": 79.6})
H200 = H100.model_copy(update={"gpu": "NVIDIA H200", "memory_gib": 139.8, "nodes": 4})
TARGET = {"target": "4x2xh200", "workload": WORKLOAD | {"global_batch": 32}, **THREE_BACKENDS}


def run(client, cluster, request, behave=quietly, name="sim"):
    """Finished study of a worker with these GPUs."""
    fingerprint = FINGERPRINT.model_copy(update={"device": "cuda", "gpu": cluster.gpu})
    worker = SimulatedWorker(client, name=name, behave=behave, cluster=cluster, fingerprint=fingerprint).register()
    answer = client.post("/v1/studies", json=request)
    assert answer.status_code == 201, answer.text
    worker.work()
    return client.get(f"/v1/studies/{answer.json()['study_id']}").json()


def test_an_answer_for_another_kind_is_projected_served_with_low_confidence_and_confirmed_there(quick_client):
    study = run(quick_client, H100, SPEC | TARGET | {"cluster": H100.model_dump(mode="json")})
    projection = study["result"]["projection"]
    assert projection is not None, study["result"]["notes"]
    assert projection["measured_gpu"] == "H100-SXM5-80GB" and projection["cluster"]["gpu"].startswith("H200")
    assert projection["cluster"]["memory_gib"] > 130
    assert {point["evidence"] for point in projection["best"]["curve"]} == {"projected"}
    page = quick_client.get(f"/studies/{study['study_id']}").text
    assert "Measured on 2 × H100-SXM5-80GB" in page and "All points are projected to H200" in page

    asked = {
        "model": "llama-tiny", "cluster": H200.model_dump_json(), "workload": json.dumps(WORKLOAD | {"global_batch": 32}),
        "match": "exact", "projections": "true", "lowest_confidence": "low",
    }  # fmt: skip
    answer = quick_client.get("/v1/best", params=asked)
    assert answer.status_code == 200, answer.text
    confidence = answer.json()["confidence"]
    assert confidence["level"] == "low" and "another kind of GPU" in confidence["reasons"][0]

    export = quick_client.get(f"/v1/studies/{study['study_id']}/export", params={"which": "target"})
    confirmation = json.loads(export.json()["files"]["confirm.json"])
    second = confirmation["baseline"]

    def behave(_lease, task):
        return measurement(900.0 if task.config.model_dump(mode="json") == second else 1500.0)

    there = run(quick_client, H200, confirmation, behave, "there")
    assert there["result"]["verdict"] == "confirmed", there
    after = quick_client.get(f"/v1/studies/{study['study_id']}").json()["result"]["projection"]
    assert after["verdict"] == "confirmed" and after["confirmation"]["study_id"] == there["study_id"]


def test_cpu_ranks_say_nothing_about_a_gpu(quick_client):
    SimulatedWorker(quick_client).register()
    answer = quick_client.post("/v1/studies", json=SPEC | TARGET)
    assert answer.status_code == 422
    assert "CPU ranks say nothing about GPUs" in answer.text


def test_hosts_with_less_memory_than_the_study_s_confirm_the_answer(quick_client):
    """Nobody knows the hosts of another kind of GPU: the job must not demand the memory of the study's own."""
    study = run(quick_client, H100, SPEC | TARGET | {"cluster": H100.model_dump(mode="json")})
    export = quick_client.get(f"/v1/studies/{study['study_id']}/export", params={"which": "target"})
    confirmation = json.loads(export.json()["files"]["confirm.json"])
    small = H200.model_copy(update={"host_memory_gib": H200.host_memory_gib / 2})
    there = run(quick_client, small, confirmation, name="there")
    assert there["state"] == "complete", there["reason"]
    after = quick_client.get(f"/v1/studies/{study['study_id']}").json()["result"]["projection"]
    assert after["confirmation"]["study_id"] == there["study_id"]


def test_an_answer_that_was_measured_on_the_kind_itself_comes_before_a_newer_one_of_another_kind(quick_client):
    small = H200.model_copy(update={"nodes": 1})
    own = run(quick_client, small, SPEC | TARGET | {"target": "4x2", "cluster": small.model_dump(mode="json")})
    run(quick_client, H100, SPEC | TARGET | {"cluster": H100.model_dump(mode="json")}, name="other")
    asked = {
        "model": "llama-tiny", "cluster": H200.model_dump_json(), "workload": json.dumps(WORKLOAD | {"global_batch": 32}),
        "match": "exact", "projections": "true", "lowest_confidence": "medium",
    }  # fmt: skip
    answer = quick_client.get("/v1/best", params=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["study_id"] == own["study_id"] and answer.json()["projection"]["measured_gpu"] is None
