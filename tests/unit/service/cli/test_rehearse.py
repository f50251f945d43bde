"""Options of `shardtune rehearse`: the target, the configuration, and what is missing here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.service.cli.commands.target.rehearse import subject_of
from shardtune.service.cli.errors import InputError

CONFIG = {"strategy": {"kind": "fsdp2", "dp_shard": 512}, "activation_checkpointing": "full"}


def trial_of(model: str = "llama-2-70b", target: str | None = "64x8xh100", config: Any = CONFIG, **values: Any) -> Any:
    return subject_of(model, target, None if config is None else json.dumps(config), values)


def test_a_model_and_a_target_make_a_trial_with_its_prediction() -> None:
    trial, predicted_gib, available_gib = trial_of(global_batch=512)
    assert available_gib == pytest.approx(0.95 * trial.cluster.memory_gib)
    assert trial_of(config=CONFIG | {"compile": True}).available_gib is None
    assert trial.cluster.world_size == 512 and trial.workload.global_batch == 512
    assert trial.config.strategy == Fsdp2Config(dp_shard=512)
    assert predicted_gib == pytest.approx(16.5, abs=0.3)


def test_a_study_with_a_target_is_rehearsed_there(tmp_path: Path) -> None:
    study = {"model": "llama-2-70b", "workload": {"sequence_length": 4096, "global_batch": 1024}, "cluster": "2x8xh100"}
    path = tmp_path / "study.json"
    path.write_text(json.dumps({**study, "target": "64x8"}))
    trial = trial_of(str(path), target=None).trial
    assert (trial.cluster.world_size, trial.workload.global_batch) == (512, 1024)
    trial = trial_of(str(path), target="32x8", config=None).trial
    assert trial.cluster.world_size == 256 and not trial.config.compile


def test_an_exported_file_is_a_configuration(tmp_path: Path) -> None:
    exported = tmp_path / "config.json"
    exported.write_text(json.dumps({"kind": "trial", "config": CONFIG}))
    trial = subject_of("llama-2-70b", "64x8xh100", str(exported), {}).trial
    assert trial.config.activation_checkpointing == "full"


def test_a_batch_that_does_not_divide_is_left_to_the_rehearsal() -> None:
    assert trial_of(global_batch=500).predicted_gib is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": None}, "--target is missing"),
        ({"target": "64x8"}, r"--target \(64x8\) must name the kind of GPU"),
        ({"target": "many"}, "must read NODES"),
        ({"target": "64x8xabacus"}, "abacus"),
        ({"config": {"strategy": {"kind": "fsdp3"}}}, "fsdp3"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        trial_of(**options)


def test_without_torch_the_extra_is_named() -> None:
    code = (
        "import importlib.util as util, sys; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "from shardtune.service.cli import main; main(['rehearse', 'llama-2-70b', '--target', '64x8xh100'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and "`pip install 'shardtune[worker]'` with this environment's pip" in ended.stderr, (
        ended.stderr
    )
    assert "Traceback" not in ended.stderr
