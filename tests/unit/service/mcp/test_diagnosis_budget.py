"""Budget of a run under the profiler: what covers it, and what cannot be compared with it."""

from datetime import UTC, datetime

import httpx
import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.training.models import ModelSpec, preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.trial import Attempt, Run, Trial, TrialState
from shardtune.service.cli.mcp.local_product import local_product
from shardtune.service.cli.mcp.stdio import StdioHost
from shardtune.service.client import ServiceClient
from shardtune.service.mcp.server import create_server
from tests.support.service.agent_client import call, in_process, text

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
STUDY = Study(
    study_id="study-1", state=StudyState.COMPLETE, phase=StudyPhase.DONE, trials={}, rejected=0, gpu_seconds=0.0,
    spec=StudySpec(model=preset("llama-tiny"), workload=Workload(sequence_length=64, global_batch=16)),
    cluster=Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8), created_at=NOON,
)  # fmt: skip


def trial(number: int, *gpu_seconds: float | None) -> Trial:
    attempts = tuple(
        Attempt(attempt=index, worker="w", started_at=NOON, finished_at=NOON, end="crash", gpu_seconds=seconds)
        for index, seconds in enumerate(gpu_seconds, 1)
    )
    config = TrialConfig(strategy=DdpConfig())
    run = Run(run_id=f"r{number}", purpose="search", state=TrialState.FAILED, attempts=attempts)
    return Trial(
        number=number, state=TrialState.FAILED, origin="default", config=config, description="DDP", runs=(run,)
    )


def asked(tmp_path, trials: list[Trial], budget: float | None, study: Study = STUDY) -> tuple[str, list[str]]:
    """Answer of `diagnose` for trial 0, and the addresses that the service was asked to change."""
    posted: list[str] = []

    def service(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            posted.append(request.url.path)
        path = request.url.path
        if path.endswith("/trials"):
            rows = [row.model_dump(mode="json") for row in trials]
            return httpx.Response(200, json={"trials": rows, "next_page_token": None})
        if path.endswith("/study-1"):
            return httpx.Response(200, json=study.model_dump(mode="json"))
        return httpx.Response(404, json={"code": "unknown_diagnosis", "detail": "never run", "status": 404})

    with ServiceClient("http://127.0.0.1:9", transport=httpx.MockTransport(service), patience_s=0) as client:
        server = create_server(StdioHost(local_product(tmp_path, client)))
        answer = in_process(server, call("diagnose", study_id="study-1", trial=0, max_gpu_seconds=budget))
    return text(answer), posted


@pytest.mark.parametrize("trials", [[trial(0), trial(1, 40.0, 90.0)], [trial(0, None, 0.0), trial(1, 40.0, 90.0)]])
def test_a_trial_without_a_known_cost_takes_as_much_as_the_longest_run_of_its_study(tmp_path, trials):
    rejected, posted = asked(tmp_path, trials, 60)
    assert rejected.startswith("max_gpu_seconds (60) does not cover one more run of trial 0: about 90 GPU-seconds")
    assert posted == []
    _, posted = asked(tmp_path, trials, 100)
    assert posted == ["/v1/studies/study-1/trials/0:diagnose"]


SCRIPT = ModelSpec(name="own", script="own")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"state": StudyState.RUNNING}, "study_id (study-1) is running, and a run under the profiler would disturb"),
        ({"spec": STUDY.spec.model_copy(update={"model": SCRIPT})}, "model.script (own) trains by itself"),
        ({"cluster": STUDY.cluster.model_copy(update={"nodes": 2})}, "cluster.nodes (2) must be 1"),
    ],
)
@pytest.mark.parametrize("budget", [None, 1e9])
def test_what_cannot_run_under_the_profiler_is_said_before_a_budget_is_asked_for(tmp_path, changes, says, budget):
    rejected, posted = asked(tmp_path, [trial(0, 40.0)], budget, STUDY.model_copy(update=changes))
    assert rejected.startswith(says) and "max_gpu_seconds" not in rejected
    assert posted == []


def test_no_budget_covers_a_cost_of_which_nothing_is_known(tmp_path):
    rejected, posted = asked(tmp_path, [trial(0), trial(1, None)], 1e9)
    assert rejected.startswith("max_gpu_seconds (1e+09) cannot be compared with one more run of trial 0")
    assert posted == []
