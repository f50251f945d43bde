"""float8 in files of axolotl and LLaMA-Factory: which of the workload's it must be, and where FSDP2 gathers in it."""

import re
from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Fsdp1Config, Fsdp2Config
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.baseline import ResolvedBaseline, resolve_with_notes

GPUS = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
GATHER = "fp8_enable_fsdp_float8_all_gather"
AXOLOTL: dict[str, Any] = {
    "base_model": "x/y",
    "sequence_len": 64,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "bf16": True,
    "fsdp_config": {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
    "fp8": True,
}
FACTORY: dict[str, Any] = {
    "finetuning_type": "full",
    "cutoff_len": 64,
    "per_device_train_batch_size": 2,
    "bf16": True,
    "fsdp": "full_shard auto_wrap",
    "fp8": True,
}


def read(values: dict[str, Any], recipe: str | None) -> ResolvedBaseline:
    workload = Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["bf16-mixed"], float8=recipe)
    return resolve_with_notes(values, workload, GPUS)


def about_float8(notes: tuple[str, ...]) -> list[str]:
    return [note for note in notes if "fp8" in note or "float8" in note]


@pytest.mark.parametrize(("changes", "gathers"), [({}, False), ({GATHER: False}, False), ({GATHER: True}, True)])
def test_axolotls_gathers_are_read_under_fsdp2(changes: dict[str, Any], gathers: bool) -> None:
    config, notes = read(AXOLOTL | changes, "tensorwise")
    assert config is not None and isinstance(config.strategy, Fsdp2Config)
    assert config.strategy.float8_gather is gathers
    assert about_float8(notes) == [
        "axolotl's fp8 leaves out the model's first and last linear layer; measured without the output head alone"
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fsdp_config": {"offload_params": True}}, "float8_gather (true) with cpu_offload (true)"),
        ({"fsdp_config": None}, "only FSDP2 gathers in float8"),
    ],
)
def test_axolotls_gathers_are_named_where_no_trial_has_them(changes: dict[str, Any], words: str) -> None:
    config, notes = read(AXOLOTL | {GATHER: True} | changes, "tensorwise")
    assert config is not None and not getattr(config.strategy, "float8_gather", False)
    assert any(note.startswith(f"baseline.{GATHER} (true); measured as false") and words in note for note in notes)


def test_llama_factorys_gathers_have_no_effect_beside_its_rowwise_scaling() -> None:
    config, notes = read(FACTORY | {GATHER: True, "fp8_backend": "torchao"}, "rowwise")
    assert config is not None and isinstance(config.strategy, Fsdp1Config)
    assert about_float8(notes) == [
        f"baseline.{GATHER} (true) has no effect with rowwise scaling; measured without these gathers"
    ]


def test_axolotls_rowwise_scaling_is_the_workloads() -> None:
    config, _ = read(AXOLOTL | {"fp8_config": {"recipe": "rowwise"}}, "rowwise")
    assert config is not None and isinstance(config.strategy, Fsdp2Config)


@pytest.mark.parametrize(
    ("values", "recipe", "words"),
    [
        (
            AXOLOTL,
            None,
            "baseline.fp8 (true) scales tensorwise by torchao in axolotl, but the workload's float8 is none",
        ),
        (AXOLOTL, "rowwise", "but the workload's float8 is 'rowwise'; make them equal, or drop fp8"),
        (
            AXOLOTL | {"fp8_config": {"recipe": "rowwise_with_gw_hp"}},
            "rowwise",
            "scales rowwise_with_gw_hp by torchao",
        ),
        (AXOLOTL | {"fp8_config": "rowwise"}, "rowwise", "fp8_config ('rowwise') must be an object"),
        (
            FACTORY,
            "tensorwise",
            "scales rowwise by torchao in LLaMA-Factory, but the workload's float8 is 'tensorwise'",
        ),
        (FACTORY | {"fp8_backend": "te"}, "rowwise", "baseline.fp8_backend ('te') is not measured; use torchao"),
    ],
)
def test_other_float8_than_the_workloads_is_rejected(values: dict[str, Any], recipe: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read(values, recipe)


@pytest.mark.parametrize("value", [False, "false", None])
def test_a_file_without_float8_is_measured_in_the_workloads(value: Any) -> None:
    for recipe in ("tensorwise", None):
        config, notes = read(AXOLOTL | {"fp8": value}, recipe)
        assert config is not None
        assert any("says nothing of float8" in note for note in notes) is (recipe is not None)
