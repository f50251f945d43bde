"""A study's optimizer: stored as stated, searched over the backends that can train with it, answered for it alone."""

import json

import pytest

from tests.support.service.scenarios import ASK, WORKLOAD
from tests.support.service.simulated_worker import SPEC, SimulatedWorker

MUON = SPEC | {"workload": SPEC["workload"] | {"optimizer": "muon"}}


@pytest.fixture
def client(quick_client):
    SimulatedWorker(quick_client).register()
    return quick_client


def rejection(client, body):
    answer = client.post("/v1/studies", json=body)
    assert answer.status_code == 422, answer.text
    return answer.json()["errors"][0]


def test_backends_that_cannot_train_with_it_are_left_out_and_named(client):
    body = {name: value for name, value in MUON.items() if name != "space"}
    study = client.post("/v1/studies", json=body).json()
    assert study["spec"]["workload"]["optimizer"]["kind"] == "muon"
    assert set(study["spec"]["space"]["backends"]) == {"ddp", "fsdp2"}
    assert any(note.startswith("space.backends (zero, fsdp1) cannot train with Muon") for note in study["warnings"])


def test_without_a_kind_it_is_adamw_over_all_backends(client):
    body = {name: value for name, value in SPEC.items() if name != "space"}
    study = client.post("/v1/studies", json=body).json()
    assert study["spec"]["workload"]["optimizer"]["kind"] == "adamw"
    assert set(study["spec"]["space"]["backends"]) == {"ddp", "zero", "fsdp2", "fsdp1"}


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"space": {"backends": ["zero", "fsdp1"]}}, "space.backends", "add ddp or fsdp2"),
        ({"baseline": {"strategy": {"kind": "zero", "stage": 2}}}, "baseline.strategy.kind", "use ddp or fsdp2"),
        ({"baseline": {"optimizer": {"type": "AdamW"}}}, "baseline", "trains with Muon"),
    ],
    ids=["backends", "baseline", "baseline's optimizer"],
)
def test_what_cannot_train_with_it_is_rejected_with_the_remedy(client, changes, field, message):
    found = rejection(client, MUON | changes)
    assert found["field"].startswith(field) and message in found["message"], found


def test_a_wrong_setting_is_rejected_with_its_field(client):
    workload = SPEC["workload"] | {"optimizer": {"kind": "muon", "adamw": {"lr": -1}}}
    assert rejection(client, SPEC | {"workload": workload})["field"] == "workload.optimizer.adamw.lr"
    workload = SPEC["workload"] | {"optimizer": {"kind": "sgd"}}
    assert (
        "use one of adamw, adamw-8bit, adamw-bf16, muon" in rejection(client, SPEC | {"workload": workload})["message"]
    )


@pytest.mark.answered
def test_an_answer_for_adamw_is_never_given_for_muon(quick_client):
    asked = ASK | {"workload": json.dumps(WORKLOAD | {"optimizer": "muon"}), "lowest_confidence": "low"}
    answer = quick_client.get("/v1/best", params=asked)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_best")


def test_predictions_are_made_for_the_optimizer(quick_client):
    request = {"model": "llama-2-7b", "cluster": "8xh100", "top": 0}
    adamw, muon = (
        quick_client.post("/v1/predictions", json=request | {"optimizer": kind}).json() for kind in ("adamw", "muon")
    )
    assert {row["config"]["strategy"]["kind"] for row in muon["predictions"]} == {"ddp", "fsdp2"}

    def state(table):
        (row,) = [row for row in table["predictions"] if row["config"]["strategy"]["kind"] == "ddp"]
        return next(term["gib"] for term in row["memory"]["terms"] if term["name"] == "optimizer")

    assert state(muon) < 0.6 * state(adamw)


@pytest.mark.parametrize("precision", ["fp32", "auto", "bf16-mixed"])
def test_stochastic_rounding_of_other_weights_is_rejected_with_the_remedy(quick_client, precision):
    workload = SPEC["workload"] | {"optimizer": "adamw-bf16", "precision": precision}
    expected = f"rounds bfloat16 weights, but precision ({precision})"
    found = rejection(quick_client, SPEC | {"workload": workload})
    assert expected in found["message"] and "use precision 'bf16-true'" in found["message"], found
    request = {"model": "llama-2-7b", "cluster": "8xh100", "top": 0, "optimizer": "adamw-bf16"}
    answer = quick_client.post("/v1/predictions", json=request | {"precision": precision})
    assert answer.status_code == 422 and "rounds bfloat16 weights" in answer.text
    assert quick_client.post("/v1/predictions", json=request | {"precision": "bf16-true"}).status_code == 200


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workload": WORKLOAD | {"optimizer": "adamw-8bit"}}, "workload.optimizer"),
        ({"consider": ["adamw-8bit"]}, "consider"),
    ],
    ids=["stated", "considered"],
)
def test_a_study_whose_optimizer_needs_a_package_that_the_worker_lacks_is_rejected(quick_client, changes, field):
    lacking = SimulatedWorker(quick_client, name="lacking").register()
    rejected = rejection(quick_client, SPEC | changes)
    assert rejected["field"] == field and "needs bitsandbytes, which worker lacking lacks" in rejected["message"]
    assert "install shardtune[8bit] there" in rejected["message"]
    SimulatedWorker(quick_client, name="able", optimizers=("adamw-8bit",)).register()
    assert quick_client.post("/v1/studies", json=SPEC | changes).status_code == 201
    if field == "workload.optimizer":
        assert lacking.lease() is None
