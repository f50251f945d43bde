"""Exports for Trainer and Lightning, as these read them."""

import json
from pathlib import Path

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from tests.conformance.exports_consumers.exported_files import DDP, EIGHT_GPUS, FSDP2, ZERO, exported, read_back
from tests.support.values.synthetic_studies import CPU


@pytest.mark.parametrize("config", [DDP, FSDP2, ZERO], ids=lambda config: config.backend)
def test_transformers_makes_training_arguments(config: TrialConfig, tmp_path: Path) -> None:
    says = read_back(config, "training-arguments", tmp_path)
    assert f"batch {config.micro_batch} × {4 // config.micro_batch}" in says


def test_the_trainer_snippet_makes_them_too(tmp_path: Path) -> None:
    for name, text in exported(DDP, "training-arguments", CPU, "fp32").files.items():
        (tmp_path / name).write_text(text)
    names: dict[str, object] = {"__file__": str(tmp_path / "trainer_snippet.py")}
    exec(compile((tmp_path / "trainer_snippet.py").read_text(), "trainer_snippet.py", "exec"), names)
    training_arguments = names["training_arguments"](str(tmp_path), max_steps=3)  # type: ignore[operator]
    assert (
        training_arguments.ddp_bucket_cap_mb,
        training_arguments.max_steps,
        training_arguments.gradient_accumulation_steps,
    ) == (7, 3, 2)
    assert "ddp_handler.gradient_as_bucket_view = True" in (tmp_path / "trainer_snippet.py").read_text()


@pytest.mark.parametrize(
    ("strategy", "axes"),
    [
        (Fsdp2Config(dp_shard=4, tensor_parallel=2), "dp 1 × 4, tp 2, ep 1"),
        (Fsdp2Config(dp_replicate=2, dp_shard=2, tensor_parallel=2, cpu_offload=True), "dp 2 × 2, tp 2, ep 1"),
        (Fsdp2Config(dp_shard=8, expert_parallel=4), "dp 1 × 8, tp 1, ep 4"),
    ],
    ids=["tensor", "tensor in replicas", "experts"],
)
def test_transformers_makes_the_mesh_that_splits_the_model(strategy: Fsdp2Config, axes: str, tmp_path: Path) -> None:
    config = TrialConfig(strategy=strategy, activation_checkpointing="full")
    assert axes in read_back(config, "training-arguments", tmp_path)
    values = json.loads((tmp_path / "training_arguments.json").read_text())
    # The model owns its mesh: a section of FSDP would shard it again, and autocast cast it again.
    assert not {"fsdp", "fsdp_config", "deepspeed"} & values.keys() and values["bf16"] is False
    assert values["activation_checkpointing"] and values["save_only_model"]
    mesh = json.loads((tmp_path / "distributed_config.json").read_text())
    assert mesh["fsdp_mixed_precision"] and mesh["fsdp_cpu_offload"] == strategy.cpu_offload
    names: dict[str, object] = {"__file__": str(tmp_path / "trainer_snippet.py")}
    exec(compile((tmp_path / "trainer_snippet.py").read_text(), "trainer_snippet.py", "exec"), names)
    assert callable(names["load_model"])


@pytest.mark.parametrize(
    ("config", "cluster", "created"),
    [
        (DDP, CPU, "a Trainer with DDPStrategy"),
        (FSDP2, EIGHT_GPUS, "a ModelParallelStrategy"),
        (ZERO, EIGHT_GPUS, "a DeepSpeedStrategy"),
    ],
    ids=["ddp", "fsdp2", "zero"],
)
def test_lightning_makes_the_strategy(config: TrialConfig, cluster: Cluster, created: str, tmp_path: Path) -> None:
    assert created in read_back(config, "lightning", tmp_path, cluster)


def test_trainer_leaves_deepspeeds_autocast_alone() -> None:
    printed = json.loads(
        exported(ZERO, "training-arguments", precision="bf16-autocast").files["training_arguments.json"]
    )
    assert printed["bf16"] is False and printed["deepspeed"]["torch_autocast"]["enabled"]
    ddp = json.loads(exported(DDP, "training-arguments", precision="bf16-autocast").files["training_arguments.json"])
    assert ddp["bf16"] is True
