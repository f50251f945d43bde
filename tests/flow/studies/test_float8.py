"""A study in float8: only workers that have it get its runs, searched without ZeRO-3, and answered apart."""

import json

import pytest

from tests.support.service.scenarios import ASK, WORKLOAD
from tests.support.service.simulated_worker import SPEC, SimulatedWorker

FLOAT8 = SPEC | {"workload": SPEC["workload"] | {"float8": "tensorwise"}}
ABLE = ("tensorwise", "rowwise")


def rejection(client, body):
    answer = client.post("/v1/studies", json=body)
    assert answer.status_code == 422, answer.text
    return answer.json()["errors"][0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"workload": FLOAT8["workload"]}, "workload.float8"), ({"consider": ["fp8-rowwise"]}, "consider")],
    ids=["stated", "considered"],
)
def test_a_worker_without_torchao_gets_no_study_in_float8(quick_client, changes, field):
    lacking = SimulatedWorker(quick_client, name="lacking").register()
    rejected = rejection(quick_client, SPEC | changes)
    assert rejected["field"] == field and "needs torchao, which worker lacking lacks" in rejected["message"]
    assert "install shardtune[fp8] there" in rejected["message"]
    able = SimulatedWorker(quick_client, name="able", float8=ABLE).register()
    assert quick_client.post("/v1/studies", json=SPEC | changes).status_code == 201
    if field == "workload.float8":
        assert lacking.lease() is None
        assert able.lease() is not None


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"workload": FLOAT8["workload"] | {"float8": "fp8"}}, "workload.float8", "'tensorwise' or 'rowwise'"),
        ({"workload": FLOAT8["workload"] | {"sequence_length": 24}}, "workload", "try 16 or 32"),
        ({"workload": FLOAT8["workload"] | {"precision": "bf16-autocast"}}, "workload", "use bf16-mixed"),
        ({"baseline": {"strategy": {"kind": "zero", "stage": 3}}}, "baseline", "use stage 1 or 2"),
        ({"space": {"backends": ["zero"], "knobs": {"stage": 3}}}, "space", "stage"),
        (
            {
                "workload": FLOAT8["workload"] | {"float8": "rowwise"},
                "space": {"backends": ["fsdp2"], "knobs": {"float8_gather": True}},
            },
            "space.knobs.float8_gather",
            "it needs workload.float8 ('tensorwise'), whose weights have one scale each; leave it out",
        ),
    ],
    ids=["name", "length", "autocast", "baseline", "space", "gathers"],
)
def test_what_float8_cannot_train_is_rejected_with_the_remedy(quick_client, changes, field, message):
    SimulatedWorker(quick_client, float8=ABLE).register()
    found = rejection(quick_client, FLOAT8 | changes)
    assert found["field"].startswith(field) and message in found["message"], found


def test_a_study_in_float8_is_told_that_zero_3_is_left_out(quick_client):
    worker = SimulatedWorker(quick_client, float8=ABLE).register()
    study_ids = [quick_client.post("/v1/studies", json=body).json()["study_id"] for body in (FLOAT8, SPEC)]
    worker.work()
    told = "space.knobs.stage (3) cannot train with workload.float8 ('tensorwise'): it frees weights"
    results = [quick_client.get(f"/v1/studies/{study_id}").json()["result"] for study_id in study_ids]
    assert [any(note.startswith(told) for note in result["notes"]) for result in results] == [True, False]


@pytest.mark.answered
def test_an_answer_without_float8_is_never_given_for_float8(quick_client):
    asked = ASK | {"workload": json.dumps(WORKLOAD | {"float8": "tensorwise"}), "lowest_confidence": "low"}
    answer = quick_client.get("/v1/best", params=asked)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_best")


def test_predictions_in_float8_are_faster_on_gpus_that_have_it_and_rejected_on_others(quick_client):
    request = {"model": "llama-3.1-8b", "cluster": "8xh100", "top": 3}
    plain, float8 = (
        quick_client.post("/v1/predictions", json=request | {"float8": name}).json() for name in (None, "tensorwise")
    )
    speeds = [table["fastest"][0]["speed"]["tokens_per_s_per_gpu"] for table in (plain, float8)]
    assert 1.05 < speeds[1] / speeds[0] < 1.25
    memory, memory_in_float8 = (
        {json.dumps(row["config"]): row["memory"]["total_gib"] for row in table["predictions"]}
        for table in (plain, float8)
    )
    assert memory_in_float8.items() <= memory.items()
    kinds = {
        (row["config"]["strategy"]["kind"], row["config"]["strategy"].get("stage")) for row in float8["predictions"]
    }
    assert ("zero", 3) not in kinds and ("zero", 2) in kinds
    rejected = quick_client.post("/v1/predictions", json=request | {"cluster": "8xa100-80gb", "float8": "rowwise"})
    assert rejected.status_code == 422
    assert "needs GPUs with float8 (compute capability 8.9), and A100" in rejected.json()["errors"][0]["message"]
