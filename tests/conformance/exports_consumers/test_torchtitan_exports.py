"""Exports for torchtitan, as torchtitan reads them."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.model_presets import preset_sources
from shardtune.api_schemas.training.models import preset
from shardtune.tuner.export import export, torchtitan
from shardtune.workers.rank import check_export
from tests.conformance.exports_consumers.exported_files import (
    DDP,
    EIGHT_GPUS,
    FSDP2,
    PLAIN_FSDP2,
    TORCHTITANS_GC,
    ZERO,
    exported,
    read_back,
    reads_python,
)
from tests.support.values.synthetic_studies import CPU, contender_of, study_of, with_float8


@reads_python
@pytest.mark.parametrize(("config", "axes"), [(DDP, "8 × 1"), (FSDP2, "1 × 8")], ids=["ddp", "fsdp2"])
def test_torchtitan_reads_the_file(config: TrialConfig, axes: str, tmp_path: Path) -> None:
    assert f"dp {axes}, local batch {config.micro_batch}" in read_back(config, "torchtitan", tmp_path)


@reads_python
def test_torchtitan_shards_over_the_ranks_that_share_samples(tmp_path: Path) -> None:
    shared = PLAIN_FSDP2.model_copy(update={"context_parallel": 2})
    assert f"dp 1 × 4, local batch {shared.micro_batch}" in read_back(shared, "torchtitan", tmp_path)
    files = exported(shared, "torchtitan")
    assert "context_parallel_degree=2" in files.files["torchtitan_config.py"]
    assert any("in a ring" in line for line in files.lossy)


@reads_python
def test_torchtitan_splits_over_the_ranks_that_did(tmp_path: Path) -> None:
    split = TrialConfig(strategy=Fsdp2Config(dp_shard=4, tensor_parallel=2))
    assert "dp 1 × 4, local batch 1" in read_back(split, "torchtitan", tmp_path)
    files = exported(split, "torchtitan")
    assert "tensor_parallel_degree=2" in files.files["torchtitan_config.py"]
    assert any("splits it at the embedding" in line for line in files.lossy)


@reads_python
def test_torchtitan_trains_in_as_many_stages(tmp_path: Path) -> None:
    cut = TrialConfig(strategy=Fsdp2Config(dp_shard=4, pipeline_parallel=2))
    files = exported(cut, "torchtitan")
    source = files.files["torchtitan_config.py"]
    assert "pipeline_parallel_degree=2" in source and 'pipeline_parallel_schedule="1F1B"' in source
    assert "dp 1 × 4, local batch 8" in read_back(cut, "torchtitan", tmp_path)
    assert any("as a block" in line for line in files.lossy)


@pytest.mark.parametrize(
    ("virtual", "stated"),
    [(2, None), (3, "pipeline_parallel_layers_per_stage=3"), (4, None)],
    ids=["its default", "by layers", "no number of layers"],
)
def test_torchtitan_has_as_many_stages_on_a_rank_where_layers_say_so(virtual: int, stated: str | None) -> None:
    """A pipeline of 16 blocks, and two that it counts for the embedding tables."""
    strategy = Fsdp2Config(
        dp_shard=4, pipeline_parallel=2, pipeline_schedule="interleaved_1f1b", pipeline_virtual_stages=virtual
    )
    study = study_of("llama-tiny", "bf16-mixed", EIGHT_GPUS, global_batch=32)
    assert study.model_summary is not None
    study = study.model_copy(update={"model_summary": study.model_summary.model_copy(update={"pipeline_blocks": 16})})
    files = export(study, contender_of(TrialConfig(strategy=strategy)), "torchtitan")
    source = files.files["torchtitan_config.py"]
    assert 'pipeline_parallel_schedule="Interleaved1F1B"' in source
    assert (stated or "") in source and ("layers_per_stage" in source) == (stated is not None)
    assert any("pipeline_virtual_stages" in line for line in files.lossy) == (virtual == 4)


@reads_python
def test_torchtitan_divides_experts_over_as_many_ranks(tmp_path: Path) -> None:
    divided = TrialConfig(strategy=Fsdp2Config(dp_shard=8, expert_parallel=2))
    files = exported(divided, "torchtitan")
    assert "expert_parallel_degree=2" in files.files["torchtitan_config.py"]
    assert "dp 1 × 8" in read_back(divided, "torchtitan", tmp_path)
    assert any("load_balance_coeff" in line for line in files.lossy)


@reads_python
@pytest.mark.parametrize(
    ("cluster", "recipe"), [(CPU, "tensorwise"), (EIGHT_GPUS, "rowwise")], ids=["emulated", "on GPUs"]
)
def test_torchtitan_converts_the_linear_layers_of_blocks_and_no_others(
    cluster: Cluster, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantization: Any = importlib.import_module("torchtitan.components.quantization.float8")
    monkeypatch.setattr(quantization, "has_cuda_capability", lambda *_: cluster is EIGHT_GPUS)
    study = with_float8(study_of("llama-tiny", "bf16-mixed", cluster, global_batch=32), recipe)
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=cluster.world_size), compile=True)
    files = export(study, contender_of(config), "torchtitan")
    for name, text in files.files.items():
        (tmp_path / name).write_text(text)
    read = check_export.check("torchtitan", tmp_path)
    assert read["checked"] and "of llama3's debugmodel" in read["says"]
    assert not any(line.startswith("float8") for line in files.lossy)
    assert ("compile: true was measured; torchtitan has false" in files.lossy) is (cluster is CPU)
    names: dict[str, Any] = {}
    source = files.files["torchtitan_config.py"].replace('"SET-ME", "SET-ME"', '"llama3", "debugmodel"')
    source = source.replace('"llama3", "SET-ME"', '"llama3", "debugmodel"')
    exec(compile(source, "torchtitan_config.py", "exec"), names)
    with torch.device("meta"):
        model = names["shardtune"]().model_spec.model.build()
    linear = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    converted = {name for name, module in linear.items() if isinstance(module, quantization.Float8Linear)}
    assert converted == {name for name in linear if name.startswith("layers.")} and len(converted) == len(linear) - 1
    assert {linear[name].config.emulate for name in converted} == {cluster is CPU}
    scalings = {linear[name].config.cast_config_input.scaling_granularity.value for name in converted}
    assert scalings == {"tensorwise" if recipe == "tensorwise" else "axiswise"}


def test_torchtitan_counts_checkpointed_blocks_as_the_trial_does() -> None:
    changes = {"activation_checkpointing": "full", "checkpoint_every": 3, "gc_every": TORCHTITANS_GC}
    counted = PLAIN_FSDP2.model_copy(update=changes)
    files = exported(counted, "torchtitan")
    assert "EveryNth.Config(every=3" in files.files["torchtitan_config.py"]
    assert files.lossy_config is None
    lost = exported(counted.model_copy(update={"activation_checkpointing": "selective"}), "torchtitan")
    assert "checkpoint_every: 3 was measured; torchtitan has 1" in lost.lossy


@reads_python
@pytest.mark.parametrize(
    ("mode", "every", "policy"),
    [("none", 1, "no checkpointing"), ("full", 1, "FullAC"), ("full", 3, "EveryNth"), ("selective", 1, "SelectiveAC")],
)
def test_torchtitan_has_the_policy_of_checkpointing(mode: str, every: int, policy: str, tmp_path: Path) -> None:
    config = PLAIN_FSDP2.model_copy(update={"activation_checkpointing": mode, "checkpoint_every": every})
    assert policy in read_back(config, "torchtitan", tmp_path)


@reads_python
def test_torchtitan_keeps_attention_alone(tmp_path: Path) -> None:
    changes = {"activation_checkpointing": "selective", "selective_keeps": "attention", "gc_every": TORCHTITANS_GC}
    config = PLAIN_FSDP2.model_copy(update=changes)
    assert exported(config, "torchtitan").lossy_config is None
    assert "AttentionAC" in read_back(config, "torchtitan", tmp_path)
    names: dict[str, Any] = {"__name__": "shardtune_export"}
    exec(compile(exported(config, "torchtitan").files["torchtitan_config.py"], "torchtitan_config.py", "exec"), names)
    kept = {str(operator) for operator in names["AttentionAC"].Config().build().get_save_ops()}
    assert "aten._scaled_dot_product_flash_attention.default" in kept and "flex_attention" in kept
    assert not any(".mm." in name or "addmm" in name for name in kept)


@reads_python
def test_torchtitan_has_the_budget_of_what_compiled_blocks_keep(tmp_path: Path) -> None:
    config = PLAIN_FSDP2.model_copy(update={"compile": True, "activation_memory_budget": 0.5})
    assert "MemoryBudgetAC" in read_back(config, "torchtitan", tmp_path)


@reads_python
@pytest.mark.parametrize(("name", "flavor"), torchtitan.FLAVORS.items())
def test_torchtitan_has_every_size_that_the_export_names(name: str, flavor: str) -> None:
    folder = torchtitan.FOLDERS[preset(name).model_type or ""]
    assert importlib.import_module(f"torchtitan.models.{folder}").model_registry(flavor).flavor == flavor


def test_torchtitan_replicates_without_buckets_and_says_so() -> None:
    files = exported(DDP, "torchtitan")
    assert files.lossy_config is not None
    assert files.lossy_config.strategy == Fsdp2Config(dp_replicate=8, dp_shard=1, reshard_after_forward=False)
    (note,) = (line for line in files.lossy if line.startswith("backend: ddp ("))
    assert "bucket_cap_mb 7" in note and "replicates by fully_shard" in note
    assert not any(line.startswith("bucket_cap_mb") for line in files.lossy)


@pytest.mark.parametrize(
    ("name", "model", "flavor"),
    [("llama-3.1-8b", "llama3", "8B"), ("llama-3.2-1b", "llama3", "1B"), ("llama-2-7b", "llama3", "SET-ME")],
)
def test_torchtitan_has_the_size_that_was_measured_or_asks_for_it(name: str, model: str, flavor: str) -> None:
    study = study_of(name, "bf16-mixed", EIGHT_GPUS, global_batch=32)
    assert study.model_summary is not None
    summary = study.model_summary.model_copy(update={"parameters": preset_sources()[name].parameters})
    study = study.model_copy(update={"model_summary": summary})
    files = export(study, contender_of(PLAIN_FSDP2), "torchtitan")
    assert f'MODEL, FLAVOR = "{model}", "{flavor}"' in files.files["torchtitan_config.py"]
    assert any(line.startswith("model: the size") for line in files.lossy) == (flavor == "SET-ME")


def test_torchtitan_has_no_zero() -> None:
    with pytest.raises(ValueError, match=r"'zero'.*torchtitan 0.3.*--which"):
        exported(ZERO, "torchtitan")
