"""Studies that name code of the user's own: only a worker that allows the name gets them."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.service.simulated_worker import MODEL_SUMMARY, SimulatedWorker

SPEC: dict[str, Any] = {
    "workload": {"sequence_length": 64, "global_batch": 8},
    "space": {"backends": ["ddp"]},
    "budget": {"max_trials": 2},
}


def test_a_name_that_no_worker_allows_is_rejected_with_those_that_are(quick_client: TestClient) -> None:
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


def scripted_study(client: TestClient, taken: tuple[str, ...], **changes: Any) -> dict[str, Any]:
    """A study of a script that takes these backends, to its end."""
    worker = SimulatedWorker(client, own_scripts=("plain",)).register()
    spec = {"workload": SPEC["workload"], "budget": SPEC["budget"], "model": {"script": "plain"}} | changes
    created = client.post("/v1/studies", json=spec)
    assert created.status_code == 201, created.text
    lease = worker.lease()
    assert lease is not None and lease.task.kind == "model_summary"
    worker.report(lease, MODEL_SUMMARY.model_copy(update={"backends": taken}))
    worker.work()
    study: dict[str, Any] = client.get(f"/v1/studies/{created.json()['study_id']}").json()
    study["trials"] = client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    return study


def test_a_script_says_which_backends_it_takes_and_nothing_else_is_tried(quick_client: TestClient) -> None:
    study = scripted_study(quick_client, ("ddp",))
    assert study["state"] == "complete" and study["result"]["best"] is not None, study["reason"]
    assert {trial["config"]["strategy"]["kind"] for trial in study["trials"]} == {"ddp"}
    assert any("the script takes ddp only" in note for note in study["result"]["notes"])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"baseline": {"strategy": {"kind": "zero", "stage": 2}}}, "baseline is a configuration of zero"),
        ({"space": {"backends": ["fsdp2", "zero"]}}, "space.backends (fsdp2, zero) has nothing that the script takes"),
    ],
)
def test_what_the_script_cannot_take_is_rejected_before_it_is_tried(
    quick_client: TestClient, changes: dict[str, Any], says: str
) -> None:
    study = scripted_study(quick_client, ("ddp",), **changes)
    assert study["state"] == "failed" and says in study["reason"] and study["trials"] == []


def test_a_model_is_either_an_entry_point_or_a_script(quick_client: TestClient) -> None:
    SimulatedWorker(quick_client).register()
    both = {"script": "a", "entry_point": "b"}
    answer = quick_client.post("/v1/studies", json=SPEC | {"model": both})
    assert answer.status_code == 422 and "exclude each other" in answer.text
