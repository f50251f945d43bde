"""Exports over HTTP: the form is chosen, what is lost is said, and what cannot be is rejected."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.support.service.simulated_worker import SPEC, SimulatedWorker, quietly

STUDY = "complete"


def complete_study(client: TestClient) -> None:
    """Make a study whose best is FSDP2."""
    worker = SimulatedWorker(client, behave=quietly).register()
    client.post("/v1/studies", json=SPEC, params={"study_id": STUDY}).raise_for_status()
    worker.work()


@pytest.fixture
def sqlite_start(request: pytest.FixtureRequest, sqlite_template: Path, sqlite_after: Callable[..., Path]) -> Path:
    """Begin with the study where a test names its export."""
    return sqlite_after(complete_study) if "exported" in request.fixturenames else sqlite_template


@pytest.fixture
def exported(quick_client: TestClient) -> str:
    """Path of the export of the study that the service's database begins with."""
    return f"/v1/studies/{STUDY}/export"


def test_each_form_has_its_files_and_says_what_is_lost(quick_client: TestClient, exported: str) -> None:
    assert "train_snippet.py" in quick_client.get(exported).json()["files"]
    for form, name, release in (
        ("training-arguments", "training_arguments.json", "transformers"),
        ("torchtitan", "torchtitan_config.py", "torchtitan 0.3.0"),
        ("lightning", "lightning_strategy.py", "lightning"),
        ("trl", "trl_sft.yaml", "TRL"),
        ("axolotl", "axolotl.yaml", "axolotl 0.21"),
        ("llama-factory", "llama_factory.yaml", "LLaMA-Factory 0.9"),
        ("ms-swift", "ms_swift.yaml", "ms-swift 4.6"),
        ("skypilot", "skypilot.yaml", "SkyPilot 0.14"),
        ("dstack", "train.dstack.yml", "dstack 0.22"),
        ("trainjob", "trainjob.yaml", "Kubeflow Trainer"),
        ("ray", "ray_job.py", "Ray 2.60"),
    ):
        answer = quick_client.get(exported, params={"format": form}).json()
        assert set(answer["files"]) >= {"config.json", name} and answer["format"] == form
        assert release in answer["release"] and answer["lossy"]


def test_an_unknown_form_is_rejected_with_those_that_are(quick_client: TestClient, exported: str) -> None:
    answer = quick_client.get(exported, params={"format": "megatron"})
    assert answer.status_code == 422 and "torchtitan" in answer.text


@pytest.mark.parametrize("zero", ["٠", "०", "𝟎"])
def test_a_trial_named_in_another_script_is_unknown(quick_client: TestClient, exported: str, zero: str) -> None:
    """The number would be part of the download's name, and a header has Latin characters only."""
    for path in (exported, f"{exported.removeprefix('/v1')}/all.zip"):
        answer = quick_client.get(path, params={"which": zero})
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_trial"), path
        assert quick_client.get(path, params={"which": "0"}).status_code == 200


def test_a_consumer_without_the_backend_is_rejected(quick_client: TestClient, exported: str) -> None:
    trials = quick_client.get(exported.replace("export", "trials")).json()
    rows = trials if isinstance(trials, list) else next(value for value in trials.values() if isinstance(value, list))
    zero = next(trial["number"] for trial in rows if trial["config"]["strategy"]["kind"] == "zero")
    answer = quick_client.get(exported, params={"format": "torchtitan", "which": str(zero)})
    assert answer.status_code == 422 and "not in torchtitan 0.3.0" in answer.text


def test_json_without_its_header_is_told_so(quick_client: TestClient) -> None:
    answer = quick_client.post(
        "/v1/studies", content=b'{"model": "llama-tiny"}', headers={"content-type": "text/plain"}
    )
    assert answer.status_code == 422
    assert "Content-Type: application/json" in answer.json()["errors"][0]["message"]
    assert len(answer.text) < 600
