"""Plans of published training runs: how near their GPU-hours are, and files that cannot be read."""

import json
from pathlib import Path

import pytest

from benchmarks.whole_runs import __main__ as command
from benchmarks.whole_runs.models import model, trained_length
from shardtune.tuner.prediction.shapes.config_shape import from_config


def test_most_published_runs_are_planned_within_a_factor_of_one_and_a_half() -> None:
    result = command.score([command.DATA / "whole_runs.csv"])
    assert result["runs"] == 12
    assert result["within_1.5"] >= 0.65 and result["within_1.35"] >= 0.65 and result["bands_right"] >= 0.65
    assert 0.8 <= result["median_ratio"] <= 1.2


@pytest.mark.parametrize(("name", "billions"), [("Llama-3-8B", 8.03), ("DeepSeek-V3", 671.0), ("Unknown-13B", 13.0)])
def test_models_have_about_the_stated_parameters(name: str, billions: float) -> None:
    shape = from_config(model(name, billions, "").trained_config)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.15)


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("TinyLlama-1.1B", 2048),
        ("Llama-3.1-8B", 8192),
        ("Pythia-1B", 2048),
        ("DeepSeek-V3", 4096),
        ("Unknown-13B", 4096),
    ],
)
def test_runs_are_planned_with_the_sequence_length_that_they_trained(name: str, length: int) -> None:
    assert trained_length(name) == length


def test_a_file_of_another_format_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs.csv").write_text("model,gpu\nA,B\n")
    assert command.main(["--data", str(tmp_path / "runs.csv")]) == 2
    assert "gpu_hours" in capsys.readouterr().err
    header = "model,params_b,tokens_b,gpu,count,gpu_hours,mfu,source,notes\n"
    (tmp_path / "runs.csv").write_text(header + "X-1B,one,100,H100,8,100,,,\n")
    assert command.main(["--data", str(tmp_path / "runs.csv"), "--json"]) == 2
    (tmp_path / "runs.csv").write_text(header + "X-1B,1,100,H100,8,1000,,,\n")
    capsys.readouterr()
    assert command.main(["--data", str(tmp_path / "runs.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 1
