"""deploy/slurm/worker.sbatch through a real `sbatch`: a job that ends in mid-study hands its run back, and goes on when requeued."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import needs
from tests.lab.laboratory import HEAD, Laboratory, for_this_process
from tests.lab.service import LabService
from tests.lab.worker import LabWorker
from tests.support.real_parts import TINY

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900)]

MEASURE = (
    '{"parity_steps": 2, "max_warmup_steps": 1, "window_steps": 1, "min_windows": 3, "max_windows": 100000,'
    ' "min_measure_s": 6, "max_measure_s": 6}'
)


@pytest.fixture
def laboratory() -> Iterator[Laboratory]:
    needs.require("slurm")
    with for_this_process(hosts=2, ranks=1, engine="slurm") as made:
        yield made


def spec(cluster: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": TINY,
        "workload": {"sequence_length": 32, "global_batch": 8, "recipe": "fp32"},
        "cluster": cluster,
        "budget": {"max_trials": 1, "max_pairs": 7, "restart_check": False, "repeat_disturbed": 0},
        "space": {"backends": ["ddp"], "knobs": {"micro_batch": [1]}},
    }


def test_a_requeued_job_goes_on_under_its_name(laboratory: Laboratory, tmp_path: Path) -> None:
    with LabService(laboratory, tmp_path, MEASURE=MEASURE) as service:
        worker = LabWorker(laboratory, service)
        worker.start()
        (registered,) = service.await_true(lambda: service.get("/v1/workers")["workers"], 300, "the worker registers")
        cluster = registered["inventory"]["cluster"]
        assert (cluster["nodes"], cluster["gpus_per_node"]) == (2, 1)
        study = service.create(spec(cluster))
        service.await_true(lambda: any(_is_measuring(run) for run in service.runs(study)), 300, "a trial trains")
        laboratory.run(HEAD, ["scontrol", "requeue", worker.job])
        service.await_true(lambda: _ends(service, study)[0] is not None, 60, "the run is handed back")
        service.await_true(lambda: laboratory.run(HEAD, ["squeue", "-h", "-o", "%t"]).split() == ["PD"], 60, "it waits")
        # Slurm holds a requeued job for two minutes, until its credentials have expired.
        laboratory.run(HEAD, ["scontrol", "update", f"JobId={worker.job}", "StartTime=now"])
        service.await_true(lambda: service.get(f"/v1/studies/{study}")["state"] == "complete", 300, "the study ends")
        assert _ends(service, study) == ["released", "complete"]
        assert [one["name"] for one in service.get("/v1/workers")["workers"]] == [f"slurm:lab:{worker.job}"]
        worker.end()
    assert not any(host.find("shardtune.workers") for host in laboratory.nodes)


def _is_measuring(run: dict[str, Any]) -> bool:
    return bool(run["progress"]) and run["progress"]["phase"] == "measuring"


def _ends(service: LabService, study: str) -> list[str | None]:
    return [attempt["end"] for run in service.runs(study) for attempt in run["attempts"]]
