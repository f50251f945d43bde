"""A study's adapter: stored as stated, given to workers that can train it, answered for it alone."""

import json

import pytest

from tests.support.service.scenarios import ASK, WORKLOAD
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker

KINDS = ("lora", "last_layers")
ADAPTED = SPEC | {"workload": SPEC["workload"] | {"adapter": {"rank": 8}}}


def with_adapter(**adapter):
    return SPEC | {"workload": SPEC["workload"] | {"adapter": adapter}}


def rejection(client, body):
    answer = client.post("/v1/studies", json=body)
    assert answer.status_code == 422, answer.text
    return answer.json()["errors"][0]


def test_an_adapter_is_stored_and_sent_to_the_worker(quick_client):
    worker = SimulatedWorker(quick_client, adapters=KINDS).register()
    study = quick_client.post("/v1/studies", json=ADAPTED).json()
    assert study["spec"]["workload"]["adapter"]["rank"] == 8
    lease = worker.lease()
    assert lease.task.workload.adapter.rank == 8


@pytest.mark.parametrize(
    ("adapter", "field", "message"),
    [
        ({"targets": ["q_porj"]}, "workload.adapter.targets", "did you mean q_proj"),
        ({"kind": "last_layers", "layers": 99}, "workload.adapter.layers", "more than the model's"),
        ({"load_in_4bit": True}, "workload.adapter.load_in_4bit", "use quantization ('nf4')"),
        ({"double_quantization": True}, "workload.adapter.double_quantization", "quantization is null"),
        ({"quantization": "int8"}, "workload.adapter.quantization", "must be 'nf4'"),
        ({"dropout": 0.1}, "workload.adapter.dropout", "set it to 0"),
        ({"rank": 0}, "workload.adapter.rank", "at least 1"),
    ],
)
def test_an_adapter_that_cannot_be_trained_is_rejected_with_its_field(quick_client, adapter, field, message):
    SimulatedWorker(quick_client, adapters=KINDS).register()
    found = rejection(quick_client, with_adapter(**adapter))
    assert found["field"] == field and message in found["message"], found


def test_a_baseline_that_splits_the_model_is_rejected(quick_client):
    SimulatedWorker(quick_client, adapters=KINDS).register()
    baseline = {"strategy": {"kind": "fsdp2", "dp_shard": 1, "tensor_parallel": 2}}
    found = rejection(quick_client, ADAPTED | {"baseline": baseline})
    assert found["field"].startswith("baseline") and "workload.adapter" in found["message"]


def test_a_worker_of_an_older_release_gets_no_study_with_an_adapter(quick_client):
    """It would ignore the field, train all weights and report their speed."""
    old = SimulatedWorker(quick_client).register()
    found = rejection(quick_client, ADAPTED)
    assert found["field"] == "workload.adapter" and "upgrade it" in found["message"]
    waiting = quick_client.post(
        "/v1/studies", json=ADAPTED | {"cluster": old.inventory.cluster.model_dump(), "wait_for_worker_s": 600}
    )
    assert waiting.json()["state"] == "waiting", waiting.text
    assert old.lease() is None


def test_a_study_begun_by_one_worker_is_not_continued_by_one_that_cannot(quick_client):
    SimulatedWorker(quick_client, "new", adapters=KINDS).register()
    quick_client.post("/v1/studies", json=ADAPTED).raise_for_status()
    assert SimulatedWorker(quick_client, "old").register().lease() is None


def test_a_worker_without_peft_is_told_what_to_install(quick_client):
    SimulatedWorker(quick_client, adapters=("last_layers",)).register()
    assert "install peft" in rejection(quick_client, ADAPTED)["message"]
    assert quick_client.post("/v1/studies", json=with_adapter(kind="last_layers", layers=1)).status_code == 201


@pytest.mark.answered
def test_an_answer_for_all_weights_is_never_given_for_an_adapter(quick_client):
    asked = ASK | {"workload": json.dumps(WORKLOAD | {"adapter": "lora"}), "lowest_confidence": "low"}
    answer = quick_client.get("/v1/best", params=asked)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_best")


def test_predictions_are_made_for_the_adapter(quick_client):
    request = {"model": "llama-3.1-8b", "cluster": "8xh100", "top": 0}
    table = quick_client.post("/v1/predictions", json=request | {"adapter": {"rank": 16}}).json()
    assert (table["adapter"], table["trained_parameters"]) == ("LoRA r=16", 41_943_040)
    assert all(row["memory"]["verdict"] == "fits" for row in table["predictions"])


QLORA = with_adapter(kind="qlora", rank=8)
DORA = with_adapter(kind="dora", rank=8)


def test_4_bit_weights_are_sent_to_a_worker_that_has_their_package(quick_client):
    worker = SimulatedWorker(quick_client, adapters=(*KINDS, "qlora")).register()
    study = quick_client.post("/v1/studies", json=QLORA).json()
    assert study["spec"]["workload"]["adapter"]["quantization"] == "nf4"
    assert "fsdp1" not in study["spec"]["space"]["backends"]
    assert worker.lease().task.workload.adapter.quantization == "nf4"


def test_a_worker_without_the_package_of_4_bit_weights_gets_no_such_run(quick_client):
    plain = SimulatedWorker(quick_client, "plain", adapters=KINDS).register()
    found = rejection(quick_client, QLORA)
    assert found["field"] == "workload.adapter.quantization", found
    assert "worker plain lacks; install shardtune[8bit] there" in found["message"]
    able = SimulatedWorker(quick_client, "able", adapters=(*KINDS, "qlora")).register()
    quick_client.post("/v1/studies", json=QLORA).raise_for_status()
    assert plain.lease() is None and able.lease() is not None


def test_a_worker_that_trains_lora_without_magnitudes_gets_no_study_with_dora(quick_client):
    """It would ignore the field, train LoRA and report its speed; PEFT, which it has, is not what it lacks."""
    old = SimulatedWorker(quick_client, "old", adapters=KINDS).register()
    found = rejection(quick_client, DORA)
    assert found["field"] == "workload.adapter.dora", found
    assert "worker old, whose release trains lora, last_layers; upgrade it" in found["message"]
    able = SimulatedWorker(quick_client, "able", adapters=(*KINDS, "dora")).register()
    study = quick_client.post("/v1/studies", json=DORA).json()
    assert study["spec"]["workload"]["adapter"]["dora"] and "fsdp1" not in study["spec"]["space"]["backends"]
    assert old.lease() is None
    lease = able.lease()
    assert lease is not None and lease.task.workload.adapter.dora


def test_a_kind_that_a_setting_contradicts_is_rejected_with_its_field(quick_client):
    SimulatedWorker(quick_client, adapters=(*KINDS, "dora")).register()
    found = rejection(quick_client, with_adapter(kind="dora", dora=False))
    assert found["field"] == "workload.adapter.dora" and "use kind 'lora'" in found["message"], found


@pytest.mark.parametrize("kind", ["qlora", "dora"])
def test_an_answer_for_lora_is_never_given_for_another_method(quick_client, kind):
    asked = ASK | {"workload": json.dumps(WORKLOAD | {"adapter": kind}), "lowest_confidence": "low"}
    assert quick_client.get("/v1/best", params=asked).json()["code"] == "unknown_best"


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ({"strategy": {"kind": "zero", "stage": 3}}, "cannot train beside quantised weights"),
        ({"strategy": {"kind": "fsdp1", "dp_shard": 2}}, "cannot train beside quantised weights"),
        ({"strategy": {"kind": "fsdp2", "dp_shard": 2}, "compile": True}, "set it to false, or use ddp or zero"),
    ],
)
def test_a_baseline_that_cannot_train_beside_4_bit_weights_is_rejected(quick_client, baseline, message):
    SimulatedWorker(quick_client, adapters=(*KINDS, "qlora")).register()
    found = rejection(quick_client, QLORA | {"baseline": baseline})
    assert found["field"].startswith("baseline") and message in found["message"], found


def test_a_study_in_autocast_beside_4_bit_weights_is_rejected(quick_client):
    SimulatedWorker(quick_client, adapters=(*KINDS, "qlora")).register()
    body = with_adapter(kind="qlora", rank=8)
    found = rejection(quick_client, body | {"workload": body["workload"] | {"precision": "bf16-autocast"}})
    assert "use bf16-mixed" in found["message"], found


def test_a_trainers_file_beside_4_bit_weights_needs_no_stated_precision(quick_client):
    SimulatedWorker(quick_client, adapters=(*KINDS, "qlora")).register()
    file = {"output_dir": "out", "bf16": True, "load_in_4bit": True}
    file["per_device_train_batch_size"] = WORKLOAD["global_batch"] // CLUSTER.world_size
    answer = quick_client.post("/v1/studies", json=QLORA | {"baseline": file})
    assert answer.status_code == 201, answer.text
    assert answer.json()["spec"]["workload"]["precision"]["name"] == "bf16-mixed"
    assert answer.json()["warnings"][0].startswith("precision (of the baseline): bf16-mixed, because the Trainer")
