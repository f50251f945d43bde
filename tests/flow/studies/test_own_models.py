"""Studies that name code of the user's own: only a worker that allows the name gets them."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from shardtune.service.process.context import Context
from tests.support.service.simulated_worker import MODEL_SUMMARY, SimulatedWorker, quietly

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
    with_it = SimulatedWorker(quick_client, name="with", behave=quietly, own_scripts=("plain",)).register()
    created = quick_client.post("/v1/studies", json=SPEC | {"model": {"script": "plain", "config": {"x": 1}}})
    assert created.status_code == 201, created.text
    assert without.lease() is None
    lease = with_it.lease()
    assert lease is not None and lease.task.model.script == "plain" and lease.task.model.config == {"x": 1}
    with_it.do(lease)
    assert with_it.work() >= 2


def scripted_study(client: TestClient, taken: tuple[str, ...], **changes: Any) -> dict[str, Any]:
    """A study of a script that takes these backends, to its end."""
    worker = SimulatedWorker(client, behave=quietly, own_scripts=("plain",)).register()
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
    events = quick_client.get(f"/v1/studies/{study['study_id']}/events?limit=500").json()["events"]
    assert "study.extended" not in {event["type"] for event in events}, "nobody raised the budget"


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


TRACE: dict[str, Any] = {
    "sequence_length": 64,
    "compute_dtype": "float32",
    "samples": [2, 4],
    "peak": {"per_sample": 4e6},
    **{name: {"per_sample": 1e5} for name in ("outside", "block", "boundary", "selective", "working", "loss", "tail")},
    **{name: {"matmul_flops": 1e8, "kernels": 100} for name in ("blocks_forward", "outside_forward", "backward")},
    "block_tensors": [1000],
    "outside_tensors": [1000],
    "trained_outside": 1000,
}


def traced_study(client: TestClient, summary: dict[str, Any]) -> dict[str, Any]:
    """A study of an entry point whose worker reports this model summary, to its end."""
    worker = SimulatedWorker(client, behave=quietly, own_models=("own",)).register()
    workload = {**SPEC["workload"], "precision": "fp32"}
    own = {"entry_point": "own", "config": {"layers": 2}}
    created = client.post("/v1/studies", json=SPEC | {"model": own, "workload": workload})
    assert created.status_code == 201, created.text
    lease = worker.lease()
    assert lease is not None and lease.task.kind == "model_summary"
    worker.report(lease, MODEL_SUMMARY.model_validate(MODEL_SUMMARY.model_dump() | summary))
    worker.work()
    study: dict[str, Any] = client.get(f"/v1/studies/{created.json()['study_id']}").json()
    study["trials"] = client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    return study


def test_traced_own_code_is_predicted_in_its_study_and_afterwards_wherever_it_is_named(
    quick_client: TestClient,
) -> None:
    asked = {"model": {"entry_point": "own", "config": {"layers": 2}}, "cluster": "8xh100", "precision": "fp32"}
    before = quick_client.post("/v1/predictions", json=asked)
    assert before.status_code == 422 and "traced" in before.json()["errors"][0]["message"]
    study = traced_study(quick_client, {"step_trace": TRACE})
    assert all(trial["prediction"] is not None for trial in study["trials"])
    table = quick_client.post("/v1/predictions", json=asked).json()
    assert table["predictions"] and table["sequence_length"] == 64
    page = quick_client.get(
        "/new",
        params={
            "model": "custom",
            "config": '{"entry_point": "own", "config": {"layers": 2}}',
            "hardware": "H100-SXM-80GB",
            "sequence_length": "64",
            "global_batch": "64",
            "precision": "fp32",
        },
    )
    assert page.status_code == 200 and "tokens/s" in page.text and "has to be traced" not in page.text
    assert any(f"traced in study {study['study_id']} of 2" in note for note in table["notes"])
    other = asked | {"model": {"entry_point": "own", "config": {"layers": 3}}}
    assert quick_client.post("/v1/predictions", json=other).status_code == 422


def test_the_newest_study_with_a_trace_is_found_behind_a_failure_and_a_row_that_cannot_be_read(
    quick_client: TestClient, context: Context
) -> None:
    asked = {"model": {"entry_point": "own", "config": {"layers": 2}}, "cluster": "8xh100", "precision": "fp32"}
    failure = {"trace_failure": {"code": "time", "message": "tracing one step took more than 120 s"}}
    traced_study(quick_client, failure)
    answer = quick_client.post("/v1/predictions", json=asked)
    assert answer.status_code == 422 and "more than 120 s" in answer.text
    traced = traced_study(quick_client, {"step_trace": TRACE})
    broken = traced_study(quick_client, {"step_trace": TRACE})
    traced_study(quick_client, failure)
    with context.db.write() as session:
        values = {"id": broken["study_id"], "spec": '{"model": 7}'}
        session.execute(text("UPDATE studies SET spec = :spec WHERE id = :id"), values)
    table = quick_client.post("/v1/predictions", json=asked)
    assert table.status_code == 200, table.text
    assert any(traced["study_id"] in note for note in table.json()["notes"])


def test_own_code_that_cannot_be_traced_is_measured_as_before_and_says_why(quick_client: TestClient) -> None:
    failure = {"code": "data_dependent", "message": "the step reads values"}
    study = traced_study(quick_client, {"trace_failure": failure, "note": "nothing is predicted (data_dependent)"})
    assert study["state"] == "complete" and study["result"]["best"] is not None
    assert all(trial["prediction"] is None for trial in study["trials"])
    assert study["model_summary"]["trace_failure"] == failure
    assert any("data_dependent" in note for note in study["result"]["notes"])
