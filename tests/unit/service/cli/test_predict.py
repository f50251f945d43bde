"""`shardtune predict` and `POST /v1/predictions` give the same table, and reject the same mistakes."""

import json
import os
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from shardtune.api_schemas.machines.hardware import Cluster, CollectiveTime, HardwareReport, MeasuredHardware
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.service.app import create_app
from shardtune.service.cli.commands.app import app as cli
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.predict import lines
from shardtune.service.settings import Settings
from shardtune.tuner.search import fastest
from tests.support.service.local_client import local_client
from tests.support.service.simulated_worker import FINGERPRINT


def predict(*arguments: str) -> None:
    cli(["predict", *arguments], standalone_mode=False)


@pytest.fixture
def client(sqlite_url: str) -> TestClient:
    return local_client(create_app(Settings(database_url=sqlite_url)))


def test_the_command_and_the_route_agree(client: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    predict("llama-2-7b", "--cluster", "8xh100", "--json")
    printed = json.loads(capsys.readouterr().out)
    answer = client.post("/v1/predictions", json={"model": "llama-2-7b", "cluster": "8xh100"})
    assert answer.json() == printed
    assert {prediction["memory"]["verdict"] for prediction in printed["predictions"]} <= {
        "fits",
        "may fit",
        "does not fit",
    }


def test_the_text_says_that_nothing_was_measured_and_what_would_fit(capsys: pytest.CaptureFixture[str]) -> None:
    predict("llama-2-70b", "--cluster", "8xh100")
    shown = capsys.readouterr().out
    assert "Predicted, not measured" in shown and "does not fit by" in shown and "should fit with:" in shown


def test_printed_terms_sum_to_the_peak() -> None:
    table = fastest.answer_request(PredictionRequest(model="llama-3.1-8b", cluster="8xh100", top=0))
    assert any(name == "other" for prediction in table.predictions for name, _ in lines.memory_terms(prediction.memory))
    for prediction in table.predictions:
        total = sum(gib for _, gib in lines.memory_terms(prediction.memory))
        assert total == pytest.approx(prediction.memory.total_gib, abs=0.01)


def test_the_first_lines_are_the_fastest_that_should_fit(capsys: pytest.CaptureFixture[str]) -> None:
    predict("llama-2-70b", "--cluster", "64xh100", "--top", "2")
    shown = capsys.readouterr().out
    heading = "Fastest configurations at a global batch of 512 samples (fitting ones first, then uncertain ones):"
    first = shown[shown.index(heading) : shown.index("One configuration of each strategy")].removeprefix(heading)
    verdicts = re.findall(r"(may fit|fits) {2}", first)[-2:]
    assert verdicts[0] == "fits" and verdicts == sorted(verdicts) and "does not fit" not in first
    assert "MFU" in first and "compute" in first


def test_a_study_file_is_predicted_as_tune_would_run_it_unless_options_say_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = {"model": "gpt2", "workload": {"sequence_length": 256, "global_batch": 32}, "cluster": "2xh100"}
    (tmp_path / "study.json").write_text(json.dumps(study))

    def requested_study(*options: str) -> list[object]:
        predict(str(tmp_path / "study.json"), "--top", "1", "--json", *options)
        printed = json.loads(capsys.readouterr().out)
        return [printed[field] for field in ("model", "sequence_length", "global_batch")] + [
            printed["cluster"]["gpus_per_node"]
        ]

    assert requested_study() == ["gpt2", 256, 32, 2]
    assert requested_study("--cluster", "4xh100", "--seq-len", "128", "--global-batch", "64") == ["gpt2", 128, 64, 4]


@pytest.mark.skipif(os.environ.get("SHARDTUNE_TEST_LONG") != "1", reason="imports torch: ten seconds of a core")
def test_a_model_without_closed_form_is_built_and_counted_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "head_dim": 16}
    config = small | {"model_type": "gemma2", "num_attention_heads": 4, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    predict(str(tmp_path / "config.json"), "--cluster", "8xh100", "--json")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["fastest"] and "counting parameters and FLOPs of gemma2" in captured.err
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match=r"'bert'.* is no causal language model"):
        predict(str(tmp_path / "config.json"), "--cluster", "8xh100")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["llama-2-7b", "--cluster", "8xh900"], "'h900'.*H100"),
        (["llama-9", "--cluster", "8xh100"], "'llama-9'.*llama-2-7b"),
        (["llama-2-7b", "--cluster", "eight"], "'eight'.*8xh100"),
        (["gpt2", "--cluster", "1xh100", "--seq-len", "4096"], "sequence_length.*1024"),
        (["llama-2-7b", "--cluster", "8xh100", "--precision", "fp8"], "'fp8'.*bf16-mixed"),
    ],
)
def test_a_mistake_names_value_and_remedy(arguments: list[str], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        predict(*arguments)


def report(flops: float) -> HardwareReport:
    """Two ranks of a GPU no catalogue has."""
    return HardwareReport(
        cluster=Cluster(gpu="Novel 9", gpus_per_node=2, memory_gib=64, host_memory_gib=256),
        fingerprint=FINGERPRINT,
        measured=MeasuredHardware(
            bf16_flops=flops,
            fp32_flops=flops / 8,
            copy_bytes_per_s=2e12,
            launch_s=5e-6,
            host_link_bytes_per_s=2.5e10,
            collectives=tuple(
                CollectiveTime(operation="all_gather", bytes=size, seconds=2e-5 + size / 2 / 1e11)
                for size in (1 << 18, 1 << 24, 1 << 29)
            ),
        ),
    )


def test_hardware_nobody_knows_is_predicted_from_its_measurement(
    tmp_path: Path, client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "worker").mkdir()
    speeds = []
    for flops in (1e14, 4e14):
        new_report = report(flops)
        (tmp_path / "worker" / "hardware-x-2.json").write_text(new_report.model_dump_json())
        predict("llama-2-7b", "--state-dir", str(tmp_path), "--json")
        printed = json.loads(capsys.readouterr().out)
        speeds.append(printed["predictions"][-1]["speed"]["tokens_per_s_per_gpu"])
        entered = {"cluster": new_report.cluster.model_dump(), "hardware": new_report.measured.model_dump()}
        assert client.post("/v1/predictions", json={"model": "llama-2-7b"} | entered).json() == printed
    assert 2 < speeds[1] / speeds[0] < 4
    answer = client.post("/v1/predictions", json={"model": "llama-2-7b", "cluster": new_report.cluster.model_dump()})
    assert answer.status_code == 422 and "Novel 9" in answer.text


def test_this_machine_has_to_be_measured_first(tmp_path: Path, client: TestClient) -> None:
    with pytest.raises(InputError, match="measure-hardware"):
        predict("llama-tiny", "--state-dir", str(tmp_path))
    answer = client.post("/v1/predictions", json={"model": "llama-tiny", "cluster": "local"})
    assert answer.status_code == 422 and "no worker is registered" in answer.text


def test_a_wrong_file_of_lengths_is_named_before_a_machine_that_was_not_measured(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"messages": []}\n')
    with pytest.raises(InputError, match=r"train\.jsonl, line 1 has neither input_ids nor length"):
        predict("llama-tiny", "--data", str(tmp_path / "train.jsonl"), "--state-dir", str(tmp_path))


@pytest.mark.parametrize(
    "body", [{"model": "llama-2-7b", "cluster": "8xh900"}, {"model": {"model_type": "llama"}, "cluster": "8xh100"}]
)
def test_the_route_answers_mistakes_with_422(client: TestClient, body: dict[str, object]) -> None:
    answer = client.post("/v1/predictions", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert answer.json()["errors"][0]["message"]
