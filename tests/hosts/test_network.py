"""The link between real hosts is made slower and measured anew: what was found on the faster one is stale, and is tuned again."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.lab import requirements
from tests.lab.laboratory import for_this_process
from tests.lab.service import LabService
from tests.lab.worker import LabWorker
from tests.support.processes.stack import study

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.environ.get("SHARDTUNE_TEST_LONG") != "1", reason="minutes of real ranks: make test-long"),
]
_SETTINGS = {
    "FINGERPRINT_CHECK_S": "1",
    "FINGERPRINT_DEBOUNCE_S": "0",
    "FINGERPRINT_GONE_S": "0",
    "RETUNE_EVERY_S": "1",
}


def test_a_link_that_was_made_slower_makes_stale_by_its_bandwidth_and_a_retune_follows(tmp_path: Path) -> None:
    requirements.require("slurm")
    with (
        for_this_process(hosts=2, ranks=1, inter_mbit=200, engine="slurm") as laboratory,
        LabService(laboratory, tmp_path, WORKER_LIVE_S="10", **_SETTINGS) as service,
    ):
        worker = LabWorker(laboratory, service)
        cluster = _begin(worker, service)["cluster"]
        space = {"backends": ["ddp"], "knobs": {"micro_batch": [1]}}
        budget = {"max_trials": 1, "max_pairs": 7, "resume_check": False, "repeat_disturbed": 0}
        study_id = service.create(study(cluster=cluster, space=space, budget=budget))
        service.await_true(lambda: service.get(f"/v1/studies/{study_id}")["state"] == "complete", 600, "the study ends")
        (served,) = service.get("/v1/recommendations")["recommendations"]
        ask = f"/v1/best?target_key={served['target_key']}"
        assert service.get(ask)["freshness"] == "fresh"
        worker.end()
        laboratory.shape(100)
        _begin(worker, service)
        service.await_true(lambda: service.get(ask)["freshness"] == "stale", 60, "the answer is stale")
        assert service.get(ask)["changed_fields"] == ["inter_node_gb_per_s"]
        (retune,) = service.await_true(lambda: service.get("/v1/retunes")["retunes"], 60, "a retune is asked for")
        changed = [change["field"] for change in retune["changes"]]
        assert (retune["cause"], changed) == ("fingerprint", ["inter_node_gb_per_s"])
        service.await_true(lambda: service.get("/v1/retunes")["retunes"][0]["state"] != "queued", 120, "it begins")
        worker.end()


def _begin(worker: LabWorker, service: LabService) -> dict[str, Any]:
    """Measure the hosts and start the worker there; what it offers."""
    before = {worker["worker_id"] for worker in service.get("/v1/workers")["workers"]}
    worker.measure_hardware()
    worker.start()

    def registered() -> list[dict[str, Any]]:
        return [worker for worker in service.get("/v1/workers")["workers"] if worker["worker_id"] not in before]

    (first,) = service.await_true(registered, 300, "the worker registers")
    inventory: dict[str, Any] = first["inventory"]
    return inventory
