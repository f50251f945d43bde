"""Studies whose baseline is a file of TRL: its loss in chunks is dropped where a worker finds that the model has none."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from shardtune.tuner.baseline import trl_loss
from tests.support.service.simulated_worker import MODEL_SUMMARY, SPEC, SimulatedWorker

FILE: dict[str, Any] = {"output_dir": "out", "per_device_train_batch_size": 4, "bf16": False, "packing": False}
OURS: dict[str, Any] = {"strategy": {"kind": "ddp"}, "micro_batch": 4, "loss": "chunked", "loss_chunk": 256}
WHY = "its loss is more than the cross entropy of the next token"
SAID = f"the baseline is measured with all logits, not in chunks as its file means: {WHY}"


@pytest.mark.parametrize(
    ("baseline", "reason", "loss", "said"),
    [
        (FILE, None, ("chunked", 4096), False),
        (FILE, WHY, ("full", 1024), True),
        (OURS, WHY, ("chunked", 256), False),
    ],
    ids=["a model that can have chunks", "a model that cannot", "words of our own stay"],
)
def test_a_model_without_a_loss_in_chunks_is_measured_with_all_logits(
    quick_client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    baseline: dict[str, Any],
    reason: str | None,
    loss: tuple[str, int],
    said: bool,
) -> None:
    monkeypatch.setattr(trl_loss, "installed_version", lambda: None)
    worker = SimulatedWorker(quick_client).register()
    workload = SPEC["workload"] | {"precision": "fp32"}
    created = quick_client.post("/v1/studies", json=SPEC | {"workload": workload, "baseline": baseline})
    assert created.status_code == 201, created.text
    lease = worker.lease()
    assert lease is not None and lease.task.kind == "model_summary"
    worker.report(lease, MODEL_SUMMARY.model_copy(update={"loss_note": reason})).raise_for_status()
    first = worker.lease()
    assert first is not None and first.task.kind == "trial"
    assert (first.task.config.loss, first.task.config.loss_chunk) == loss
    study = quick_client.get(f"/v1/studies/{created.json()['study_id']}").json()
    assert (SAID in str(study)) == said
