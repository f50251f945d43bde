"""Exports for Trainer, torchtitan and Lightning, as these read them, and what they say they cannot express."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.exports import Export, ExportFormat
from shardtune.api_schemas.training.hub_source import HubSource
from shardtune.api_schemas.training.model_presets import preset_sources
from shardtune.api_schemas.training.models import preset
from shardtune.tuner.export import export, torchtitan
from shardtune.workers.rank import check_export
from tests.support.processes import preloaded_forks
from tests.support.values.synthetic_studies import CPU, contender_of, study_of, with_float8

reads_python = pytest.mark.skipif(
    check_export.installed_release("torchtitan") < (0, 3),
    reason="torchtitan 0.3 is not installed: `make test-consumers` runs these",
)
EIGHT_GPUS = Cluster(device="cuda", gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
DDP = TrialConfig(strategy=DdpConfig(bucket_cap_mb=7, gradient_as_bucket_view=True, grad_sync="every"), micro_batch=2)
FSDP2 = TrialConfig(
    strategy=Fsdp2Config(dp_shard=8, forward_prefetch=2, blocks_per_unit=2, reshard_after_forward=4, grad_sync="last"),
    activation_checkpointing="selective",
)
TORCHTITANS_GC = 50
"""Steps between two garbage collections of torchtitan, which has no automatic collection."""
PLAIN_FSDP2 = TrialConfig(strategy=Fsdp2Config(dp_shard=8))
ZERO = TrialConfig(strategy=ZeroConfig(stage=3), micro_batch=2, activation_checkpointing="full")


def exported(
    config: TrialConfig, form: ExportFormat, cluster: Cluster = EIGHT_GPUS, precision: str = "bf16-mixed"
) -> Export:
    study = study_of("llama-tiny", precision, cluster, global_batch=cluster.world_size * 4)
    return export(study, contender_of(config), form)


def apart(form: str, folder: Path) -> dict[str, Any]:
    """Export in a separate process, as the command line does: DeepSpeed's integration stays in the one that has used
    it."""
    printed = preloaded_forks.output_of(
        "shardtune.workers.rank.check_export", form, str(folder), log=folder / "check.txt"
    )
    actual_printed: dict[str, Any] = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    return actual_printed


def read_back(config: TrialConfig, form: ExportFormat, folder: Path, cluster: Cluster = EIGHT_GPUS) -> str:
    precision = "fp32" if cluster is CPU else "bf16-mixed"
    for name, text in exported(config, form, cluster, precision).files.items():
        (folder / name).write_text(text)
    actual = check_export.check(form, folder) if config is not ZERO else apart(form, folder)
    assert actual["checked"], actual["says"]
    return str(actual["says"])


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


@pytest.mark.parametrize("form", ["lightning", "trl", "axolotl", "llama-factory", "ms-swift"])
def test_who_has_no_words_for_divided_experts_says_so(form: ExportFormat) -> None:
    with pytest.raises(ValueError, match=r"expert_parallel \(2\)"):
        exported(TrialConfig(strategy=Fsdp2Config(dp_shard=8, expert_parallel=2)), form)


@pytest.mark.parametrize("form", ["training-arguments", "lightning", "trl", "axolotl", "llama-factory", "ms-swift"])
def test_who_has_no_words_for_stages_says_so(form: ExportFormat) -> None:
    with pytest.raises(ValueError, match=r"pipeline_parallel \(2\)"):
        exported(TrialConfig(strategy=Fsdp2Config(dp_shard=4, pipeline_parallel=2)), form)


@pytest.mark.parametrize("form", ["lightning", "trl", "axolotl", "llama-factory", "ms-swift"])
def test_who_has_no_words_for_split_models_says_so(form: ExportFormat) -> None:
    with pytest.raises(ValueError, match=r"tensor_parallel \(2\)"):
        exported(TrialConfig(strategy=Fsdp2Config(dp_shard=4, tensor_parallel=2)), form)


@pytest.mark.parametrize("form", ["training-arguments", "lightning", "torchtitan"])
def test_who_has_no_words_for_shared_samples_says_so(form: ExportFormat) -> None:
    with pytest.raises(ValueError, match=r"context_parallel \(2\)"):
        exported(DDP.model_copy(update={"context_parallel": 2, "compile": False}), form)


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


@pytest.mark.parametrize("config", [DDP, FSDP2, ZERO], ids=lambda config: config.backend)
def test_trls_own_parser_reads_the_file(config: TrialConfig, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL is not installed: `make test-consumers` runs this")
    says = read_back(config, "trl", tmp_path)
    assert f"batch {config.micro_batch} × {4 // config.micro_batch}, max_length 32" in says


@pytest.mark.parametrize("config", [DDP, FSDP2, ZERO], ids=lambda config: config.backend)
def test_trl_has_the_arguments_of_the_trainer_and_says_what_it_does_besides(config: TrialConfig) -> None:
    trl, trainer = exported(config, "trl"), exported(config, "training-arguments")
    values = yaml.safe_load(trl.files["trl_sft.yaml"])
    expected = json.loads(trainer.files["training_arguments.json"])
    if "deepspeed" in expected:
        assert json.loads(trl.files[values.pop("deepspeed")]) == expected.pop("deepspeed")
    assert {name: values[name] for name in expected} == expected
    # SFTConfig's own defaults would checkpoint, and train in bfloat16.
    assert values["gradient_checkpointing"] is values["activation_checkpointing"] is (config is ZERO)
    assert "bf16" in values and values["packing"] is False
    # TRL's header sets the environment above its command; the Trainer's script is started by a command of the user.
    (environment,) = [line for line in trainer.lossy if line.startswith("environment: start the ranks with ")]
    assert f"export {environment.removeprefix('environment: start the ranks with ')}\n" in trl.files["trl_sft.yaml"]
    assert set(trainer.lossy) - {environment} < set(trl.lossy)
    assert {line.partition(":")[0] for line in set(trl.lossy) - set(trainer.lossy)} == {
        "data",
        "loss",
        "metrics",
        "adapters",
        "model",
    }
    compile(trl.files["trl_sft.py"], "trl_sft.py", "exec")


def test_trl_trains_the_model_that_the_study_names_at_its_commit() -> None:
    study = study_of("llama-tiny", "bf16-mixed", EIGHT_GPUS, global_batch=32)
    hub = HubSource(id="Qwen/Qwen3-8B", revision="ab" * 20)
    spec = study.spec.model_copy(update={"model": study.spec.model.model_copy(update={"hub": hub})})
    files = export(study.model_copy(update={"spec": spec}), contender_of(PLAIN_FSDP2), "trl").files
    values = yaml.safe_load(files["trl_sft.yaml"])
    assert (values["model_name_or_path"], values["model_revision"]) == ("Qwen/Qwen3-8B", "ab" * 20)


def test_torchtitan_has_no_zero() -> None:
    with pytest.raises(ValueError, match=r"'zero'.*torchtitan 0.3.*--which"):
        exported(ZERO, "torchtitan")


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


def test_what_a_consumer_cannot_say_is_listed_and_kept_as_a_configuration() -> None:
    trainer, titan = exported(FSDP2, "training-arguments"), exported(FSDP2, "torchtitan")
    for actual in (trainer, titan):
        listed = " ".join(actual.lossy)
        for knob in ("forward_prefetch: 2", "blocks_per_unit: 2", "reshard_after_forward: 4"):
            assert knob in listed
        assert all(line in "".join(actual.files.values()) for line in actual.lossy)
    assert "forward_prefetch: 2 was measured; torchtitan has 0, as it has no setting for it" in titan.lossy
    assert "activation_checkpointing: selective was measured; Trainer has none" in trainer.lossy
    assert "grad_sync: last was measured; torchtitan has every" in titan.lossy
    assert trainer.lossy_config is not None and trainer.lossy_config.strategy == Fsdp2Config(
        dp_shard=8, grad_sync="last"
    )
    assert titan.lossy_config is not None and titan.lossy_config.strategy == Fsdp2Config(dp_shard=8)


@pytest.mark.parametrize("form", ["training-arguments", "torchtitan", "lightning"])
def test_bf16_under_ddp_is_autocast_in_every_consumer_and_fsdp2_says_where_it_is_not(form: ExportFormat) -> None:
    ddp = exported(DDP, form, precision="bf16-autocast")
    # torchtitan replicates by fully_shard, whose policy casts weights as the trial of bf16-mixed does.
    casts = form == "torchtitan"
    assert any(line.startswith("precision:") for line in ddp.lossy) == casts
    assert any("autocast keeps them in float32" in line for line in exported(DDP, form).lossy) != casts
    stated = [
        line for line in exported(PLAIN_FSDP2, form, precision="bf16-autocast").lossy if line.startswith("precision:")
    ]
    # Lightning's plugin for it is autocast, and the exported policy leaves weights alone.
    assert [line.startswith("precision: float32 weights under autocast") for line in stated] == [True] * (
        form != "lightning"
    )


def test_bf16_throughout_is_said_in_the_words_of_each_consumer() -> None:
    def printed(config: TrialConfig) -> dict[str, Any]:
        files = exported(config, "training-arguments", precision="bf16-true").files
        values: dict[str, Any] = json.loads(files["training_arguments.json"])
        return values

    # Trainer's bf16 is mixed precision, but beside DeepSpeed it must equal DeepSpeed's own switch.
    assert printed(DDP)["bf16"] is False and printed(PLAIN_FSDP2)["bf16"] is False
    assert printed(ZERO)["bf16"] is True and printed(ZERO)["deepspeed"]["bf16"]["bf16_optimizer_states"]
    for config in (DDP, PLAIN_FSDP2, ZERO):
        trainer = exported(config, "training-arguments", precision="bf16-true")
        assert any("load the model with dtype=torch.bfloat16" in line for line in trainer.lossy)
        lightning = exported(config, "lightning", precision="bf16-true").files["lightning_strategy.py"]
        assert '"precision": "bf16-true"' in lightning
    titan = exported(PLAIN_FSDP2, "torchtitan", precision="bf16-true")
    assert 'dtype="bfloat16"' in titan.files["torchtitan_config.py"]
    assert any("torchtitan reduces them in float32" in line for line in titan.lossy)
    assert "dtype: bfloat16" in exported(PLAIN_FSDP2, "trl", precision="bf16-true").files["trl_sft.yaml"]


def test_trainer_leaves_deepspeeds_autocast_alone() -> None:
    printed = json.loads(
        exported(ZERO, "training-arguments", precision="bf16-autocast").files["training_arguments.json"]
    )
    assert printed["bf16"] is False and printed["deepspeed"]["torch_autocast"]["enabled"]
    ddp = json.loads(exported(DDP, "training-arguments", precision="bf16-autocast").files["training_arguments.json"])
    assert ddp["bf16"] is True


def test_where_no_knob_is_lost_there_is_no_lossy_configuration() -> None:
    assert exported(PLAIN_FSDP2, "training-arguments").lossy_config is None
    collected = PLAIN_FSDP2.model_copy(update={"gc_every": TORCHTITANS_GC})
    assert exported(collected, "torchtitan").lossy_config is None
    assert "gc_every: 0 was measured; torchtitan has 50" in exported(PLAIN_FSDP2, "torchtitan").lossy


def test_a_consumer_that_is_not_installed_has_checked_nothing(tmp_path: Path) -> None:
    absent = {"torchtitan": ("no-such-package", lambda _: "never")}
    check = check_export.check("torchtitan", tmp_path, absent)
    assert check == {
        "checked": False,
        "says": "no-such-package is not installed here, so nothing of it has read the files",
    }


def test_every_form_has_the_trial_beside_it() -> None:
    for form in ("training-arguments", "lightning"):
        contents = exported(DDP, form).files  # type: ignore[arg-type]
        assert json.loads(contents["config.json"])["config"]["micro_batch"] == 2
