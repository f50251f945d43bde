"""Precision of a study: the user's where it was stated, else the native one of the cluster's workers."""

import json

import pytest

from shardtune.api_schemas.training.workload import PRECISIONS
from tests.support.service.simulated_worker import (
    CLUSTER,
    FINGERPRINT,
    SPEC,
    SimulatedWorker,
    measurement,
    on_quiet_machine,
    quietly,
    speed_of,
)

WORKLOAD = SPEC["workload"]
STATED = SPEC | {"workload": WORKLOAD | {"precision": "bf16-mixed"}}
EMULATING = FINGERPRINT.model_copy(update={"native_dtypes": "float32"})
RATES = {"bfloat16": 1.2e9, "float32": 6.7e10}


def bring(client, **changes):
    return SimulatedWorker(client, behave=quietly, matmul_flops=RATES, **changes).register()


def created(client, body):
    answer = client.post("/v1/studies", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def precision_of(study):
    return study["spec"]["workload"]["precision"]["name"]


@pytest.mark.parametrize("left_out", [{}, {"precision": "auto"}, {"precision": None}], ids=["absent", "auto", "null"])
def test_left_out_it_is_decided_once_and_stored_with_the_reason(quick_client, left_out):
    worker = bring(quick_client, fingerprint=EMULATING)
    study = created(quick_client, SPEC | {"workload": WORKLOAD | left_out, "budget": {"max_trials": 2}})
    assert precision_of(study) == "fp32"
    assert study["warnings"][0] == (
        "precision (auto): fp32, because simulated only emulates bfloat16 (1.2 GFLOP/s in bfloat16, 67 GFLOP/s in float32)"
    )
    worker.work()
    stored = quick_client.get(f"/v1/studies/{study['study_id']}").json()
    assert precision_of(stored) == "fp32" and stored["result"]["notes"][0].startswith("precision (auto): fp32")


def test_where_every_worker_has_bfloat16_it_is_mixed_and_one_that_emulates_makes_it_fp32(quick_client):
    SimulatedWorker(quick_client).register()
    assert precision_of(created(quick_client, SPEC)) == "bf16-mixed"
    bring(quick_client, name="old", fingerprint=EMULATING)
    assert precision_of(created(quick_client, SPEC)) == "fp32"


def test_a_stated_precision_is_never_changed_and_its_cost_is_said_at_once(quick_client):
    bring(quick_client, fingerprint=EMULATING)
    study = created(quick_client, STATED)
    assert precision_of(study) == "bf16-mixed"
    assert study["warnings"][0].startswith("precision (bf16-mixed): simulated only emulates bfloat16 (1.2 GFLOP/s")
    resolved = quick_client.post("/v1/best:resolve", json={"study": STATED})
    assert resolved.status_code == 202 and resolved.json()["study"]["warnings"] == study["warnings"]


def test_a_baseline_that_trains_under_autocast_decides_where_nothing_is_stated(quick_client):
    SimulatedWorker(quick_client).register()
    micro_batch = WORKLOAD["global_batch"] // CLUSTER.world_size
    file = {"output_dir": "out", "bf16": True, "per_device_train_batch_size": micro_batch}
    study = created(quick_client, SPEC | {"baseline": file})
    assert precision_of(study) == "bf16-autocast"
    assert study["warnings"][0].startswith("precision (of the baseline): bf16-autocast, because the Trainer under DDP")
    assert any("is autocast: measured so" in note for note in study["warnings"])
    assert precision_of(created(quick_client, STATED | {"baseline": file})) == "bf16-mixed"


def test_clones_keep_what_was_decided(quick_client):
    bring(quick_client, fingerprint=EMULATING)
    study = created(quick_client, SPEC)
    SimulatedWorker(quick_client).register()
    url = f"/v1/studies/{study['study_id']}:clone"
    assert precision_of(quick_client.post(url, json={"seed": 1}).json()) == "fp32"
    assert precision_of(quick_client.post(url, json={"workload": WORKLOAD}).json()) == "bf16-mixed", "asked anew"


def test_a_lookup_without_a_precision_means_what_a_study_there_would_train(quick_client, clock):
    worker = bring(quick_client, fingerprint=EMULATING)
    study_id = created(quick_client, SPEC)["study_id"]
    worker.work()
    ask = {"model": "llama-tiny", "cluster": CLUSTER.model_dump_json(), "match": "exact"}
    body = quick_client.get("/v1/best", params=ask | {"workload": json.dumps(WORKLOAD)}).json()
    assert body["study_id"] == study_id and body["workload"]["precision"] == PRECISIONS["fp32"].model_dump()
    answer = quick_client.post("/v1/best:resolve", json={"study": SPEC})
    assert (answer.status_code, answer.json()["best"]["study_id"]) == (200, study_id)
    other = json.dumps(WORKLOAD | {"precision": "bf16-mixed"})
    assert quick_client.get("/v1/best", params=ask | {"workload": other}).status_code == 404
    clock.turn(24 * 3600)
    assert quick_client.get("/v1/workers").json()["workers"][0]["is_live"] is False
    again = quick_client.get("/v1/best", params=ask | {"workload": json.dumps(WORKLOAD)}).json()
    assert again["study_id"] == study_id, "with nobody there to ask, what there is"


def test_predictions_for_a_gpu_without_bfloat16_say_so(quick_client):
    body = {"model": "llama-2-7b", "cluster": "8xv100-32gb"}
    remaining, stated = (
        quick_client.post("/v1/predictions", json=body | more).json() for more in ({}, {"precision": "bf16-mixed"})
    )
    assert (remaining["precision"], stated["precision"]) == ("fp32", "bf16-mixed")
    assert (
        "V100-SXM2-32GB only emulates bfloat16" in remaining["precision_note"]
        and "state fp16-mixed or fp32" in stated["precision_note"]
    )


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"workload": WORKLOAD | {"precision": "fp16-mixed", "optimizer": "muon"}}, "workload.precision", "use adamw"),
        ({"workload": WORKLOAD | {"precision": "fp16-mixed", "float8": "rowwise"}}, "workload", "leave out float8"),
        ({"space": {"knobs": {"tensor_parallel": 2}}}, "", "tensor_parallel"),
    ],
    ids=["optimizer", "float8", "tensor parallel"],
)
def test_what_float16_cannot_train_is_rejected_with_the_remedy(quick_client, changes, field, words):
    SimulatedWorker(quick_client).register()
    body = SPEC | {"workload": WORKLOAD | {"precision": "fp16-mixed"}} | changes
    answer = quick_client.post("/v1/studies", json=body)
    assert answer.status_code == 422, answer.text
    error = answer.json()["errors"][0]
    assert error["field"].startswith(field) and words in error["message"], error


def test_a_study_in_float16_runs_on_several_backends_and_counts_skipped_steps(quick_client):
    def behave(_, task):
        return on_quiet_machine(measurement(speed_of(task.config))).model_copy(update={"skipped_steps": 3})

    worker = SimulatedWorker(quick_client, behave=behave).register()
    study = created(quick_client, SPEC | {"workload": WORKLOAD | {"precision": "fp16-mixed"}})
    worker.work()
    stored = quick_client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    assert {trial["config"]["strategy"]["kind"] for trial in stored} >= {"ddp", "zero", "fsdp2"}
    runs = [run for trial in stored for run in trial["runs"]]
    measured = [run["measurement"] for run in runs if run.get("measurement")]
    assert measured and all(each["skipped_steps"] == 3 for each in measured)
