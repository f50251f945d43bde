"""The example that `make tune` chooses by device."""

import json
import runpy
from pathlib import Path

import pytest

from shardtune.api_schemas.studies.study_request import StudyRequest
from tests.support.nvml.fake_driver import H100, T4, FakeDriver

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "examples" / "study_for_this_machine.py"


@pytest.mark.parametrize(
    ("devices", "study", "reason"),
    [
        ([], "llama-tiny.json", "no GPU is visible"),
        ([H100] * 8, "llama-1b-gpus.json", "8 × NVIDIA H100 80GB HBM3: llama-3.2-1b at sequence length 2048"),
        ([T4], "llama-tiny.json", "too little for llama-3.2-1b"),
        ([T4] * 2, "llama-1b-few-gpus.json", "2 × Tesla T4"),
        ([H100], "llama-1b-few-gpus.json", "1 × NVIDIA H100 80GB HBM3"),
    ],
)
def test_make_tune_tunes_a_real_model_on_gpus_and_says_why(
    tmp_path: Path, devices: list[dict[str, object]], study: str, reason: str
) -> None:
    chosen = FakeDriver(tmp_path, *devices).python(str(SCRIPT))
    assert chosen.stdout == f"examples/{study}\n" and reason in chosen.stderr
    request = StudyRequest.model_validate(json.loads((ROOT / chosen.stdout.strip()).read_text()))
    assert request.cluster == "local"


def test_make_tune_runs_what_was_chosen() -> None:
    commands = (ROOT / "Makefile").read_text()
    assert f'shardtune tune "$$($(BIN)/python {SCRIPT.relative_to(ROOT)})"' in commands
    assert callable(runpy.run_path(str(SCRIPT))["choose"])
