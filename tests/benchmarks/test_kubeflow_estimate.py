"""The comparison with kubeflow-mcp's `estimate_resources`, whose code is not part of this repository."""

from pathlib import Path

import pytest

from benchmarks import kubeflow_estimate

# Answers as theirs does, for the parameters it gets: 2 GB for a billion.
PLANNING = """
def _get_model_info_from_hf(model):
    raise AssertionError("asks the Hub")

def estimate_resources(model, num_workers, batch_size, quantization):
    billions = _get_model_info_from_hf(model)["params"] / 1e9
    return {"data": {"gpu_memory_required": f"{int(2 * billions)}GB"}}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "kubeflow_mcp/trainer/api"
    folder.mkdir(parents=True)
    (folder / "planning.py").write_text(PLANNING)
    return tmp_path


def test_both_answers_stand_beside_each_run(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kubeflow_estimate.main([str(checkout), "--rows"]) == 0
    printed = capsys.readouterr().out
    assert "| Shardtune | 38 | 3.3% | 100% | 6 of 28 | 0 of 38 |" in printed
    # 6.74 billion parameters: 13 GB are 12.1 GiB.
    assert (
        "| Llama-2-7B (atorch-fsdp-001) | fsdp1, 8 × A100-80GB | 4096 × 4, full | 32.6 | 32.4 | 12.1 | 60.5 |"
        in printed
    )


def test_a_folder_without_its_code_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kubeflow_estimate.main([str(tmp_path)]) == 2
    assert f"checkout ({tmp_path}) has no kubeflow_mcp" in capsys.readouterr().err
