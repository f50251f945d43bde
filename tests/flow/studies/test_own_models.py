"""Studies that name code of the user's own: only a worker that allows the name gets them."""

from typing import Any

from fastapi.testclient import TestClient

from tests.support.simulated_worker import SimulatedWorker

SPEC: dict[str, Any] = {
    "workload": {"sequence_length": 64, "global_batch": 8},
    "space": {"backends": ["ddp"]},
    "budget": {"max_trials": 2},
}


def test_a_name_that_no_worker_allows_is_refused_with_those_that_are(quick_client: TestClient) -> None:
    SimulatedWorker(quick_client, own_scripts=("plain",), own_models=("lora",)).register()
    for model, field, allowed in (
        ({"script": "other"}, "model.script", "allowed there: plain"),
        ({"entry_point": "other"}, "model.entry_point", "allowed there: lora"),
    ):
        answer = quick_client.post("/v1/studies", json=SPEC | {"model": model})
        assert answer.status_code == 422
        error = answer.json()["errors"][0]
        assert (error["field"], error["value"]) == (field, "other") and allowed in error["message"]


def test_the_study_goes_to_the_worker_that_allows_it(quick_client: TestClient) -> None:
    without = SimulatedWorker(quick_client, name="without").register()
    with_it = SimulatedWorker(quick_client, name="with", own_scripts=("plain",)).register()
    created = quick_client.post("/v1/studies", json=SPEC | {"model": {"script": "plain", "config": {"x": 1}}})
    assert created.status_code == 201, created.text
    assert without.lease() is None
    lease = with_it.lease()
    assert lease is not None and lease.task.model.script == "plain" and lease.task.model.config == {"x": 1}
    with_it.do(lease)
    assert with_it.work() >= 2


def test_a_model_is_either_an_entry_point_or_a_script(quick_client: TestClient) -> None:
    SimulatedWorker(quick_client).register()
    both = {"script": "a", "entry_point": "b"}
    answer = quick_client.post("/v1/studies", json=SPEC | {"model": both})
    assert answer.status_code == 422 and "exclude each other" in answer.text
