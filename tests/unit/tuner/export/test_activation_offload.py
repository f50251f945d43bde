"""Exports keep blocks' inputs in host memory as the trial did, or say that their program cannot."""

import ast

import pytest
import yaml

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Strategy, TrialConfig, ZeroConfig
from shardtune.tuner.baseline import resolve_with_notes
from shardtune.tuner.export import accelerate, lightning, snippet, torchtitan
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.tools import axolotl, llama_factory, ms_swift
from shardtune.tuner.export.trainer import training_arguments, trl
from tests.support.values.synthetic_studies import contender_of, study_of
from tests.support.values.tuner_inputs import cpu, gpus, llama

FSDP2 = Fsdp2Config(dp_shard=2)
CPU, GPU = cpu(2), gpus(1, 2)


def source_of(strategy: Strategy, cluster: Cluster = GPU, every: int = 1) -> ExportSource:
    config = TrialConfig(
        strategy=strategy,
        activation_checkpointing="full",
        checkpoint_every=every,
        activation_offload=True,
        micro_batch=2,
    )
    return ExportSource(study_of("llama-tiny", "bf16-mixed", cluster, 8), contender_of(config), llama("llama-tiny"))


@pytest.mark.parametrize("strategy", [DdpConfig(), FSDP2, ZeroConfig(stage=3), Fsdp1Config(dp_shard=2)])
def test_the_script_copies_beside_the_computation(strategy: Strategy) -> None:
    script = snippet.source(source_of(strategy, every=2))
    ast.parse(script)
    assert "inputs = HostInputs()\n" in script
    assert "for block in model.get_submodule(BLOCKS)[1 :: 2]:\n" in script and "checkpointed(block, inputs)" in script
    assert "import functools\nimport itertools\n" in script and "import weakref\n" in script
    assert "from collections.abc import Callable, Iterator, Sequence" in script


def test_the_script_for_cpu_ranks_needs_no_streams() -> None:
    script = snippet.source(source_of(DdpConfig(), CPU))
    ast.parse(script)
    assert "cuda" not in script and "with torch.autograd.graph.save_on_cpu(pin_memory=True):" in script


def test_accelerates_fsdp2_has_a_field_for_it_that_is_read_back() -> None:
    text = accelerate.document(source_of(FSDP2))
    document = yaml.safe_load(text)
    assert document["fsdp_config"]["fsdp_activation_checkpointing_offload"] is True
    study = source_of(FSDP2).study
    config, notes = resolve_with_notes(document | {"micro_batch": 2}, study.spec.workload, GPU)
    assert config is not None and config.activation_offload and not any("offload" in note for note in notes)
    assert "fsdp_activation_checkpointing_offload" not in accelerate.document(source_of(FSDP2, every=2))


def test_accelerates_other_backends_are_told_how() -> None:
    assert "model.activation_checkpointing_enable(offload=True)" in accelerate.document(source_of(DdpConfig()))
    fsdp1 = accelerate.document(source_of(Fsdp1Config(dp_shard=2)))
    assert "Accelerate has it for FSDP2 alone; see train_snippet.py" in fsdp1 and "checkpointing_offload" not in fsdp1


@pytest.mark.parametrize("program", [training_arguments, trl])
@pytest.mark.parametrize("strategy", [DdpConfig(), ZeroConfig(stage=2)], ids=["ddp", "zero"])
def test_the_trainer_has_an_option_of_its_checkpointing(program: object, strategy: Strategy) -> None:
    rendered = program.render(source_of(strategy))  # type: ignore[attr-defined]
    text = next(text for name, text in rendered.files.items() if name.endswith(("arguments.json", "sft.yaml")))
    values = yaml.safe_load(text)
    assert values["activation_checkpointing_kwargs"] == {"use_reentrant": False, "offload": True}
    assert rendered.lossy_config.activation_offload
    assert any("copies on the computation's own stream" in line for line in rendered.lossy)


def test_the_trainers_file_is_read_back() -> None:
    source = source_of(ZeroConfig(stage=2))
    values = yaml.safe_load(training_arguments.render(source).files["training_arguments.json"])
    config, notes = resolve_with_notes(values, source.study.spec.workload, GPU)
    assert config is not None and config.activation_offload and not any("checkpointing" in note for note in notes)


def test_the_trainer_has_none_under_fsdp_but_a_variable() -> None:
    rendered = training_arguments.render(source_of(FSDP2))
    assert (
        not rendered.lossy_config.activation_offload
        and 'offload": true' not in rendered.files["training_arguments.json"]
    )
    assert any("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD=true" in line for line in rendered.lossy)
    assert any(line.startswith("activation_offload: true was measured; Trainer has false") for line in rendered.lossy)


def test_the_trainer_has_it_for_a_mesh_that_transformers_shards() -> None:
    rendered = training_arguments.render(source_of(Fsdp2Config(dp_shard=1, tensor_parallel=2)))
    values = yaml.safe_load(rendered.files["training_arguments.json"])
    assert values["activation_checkpointing_kwargs"] == {"use_reentrant": False, "offload": True}
    assert rendered.lossy_config.activation_offload
    assert any("copies on the computation's own stream" in line for line in rendered.lossy)
    assert not any("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD" in line for line in rendered.lossy)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("program", [axolotl, llama_factory, ms_swift])
def test_tools_list_it_as_lost(program: object, every: int) -> None:
    rendered = program.render(source_of(ZeroConfig(stage=2), every=every))  # type: ignore[attr-defined]
    assert not rendered.lossy_config.activation_offload
    assert sum(line.startswith("activation_offload: true was measured; ") for line in rendered.lossy) == 1
    values = yaml.safe_load(next(text for name, text in rendered.files.items() if name.endswith(".yaml")))
    assert "'offload'" not in str(values)


def test_torchtitan_keeps_inputs_on_the_gpu_and_says_so() -> None:
    rendered = torchtitan.render(source_of(FSDP2))
    assert not rendered.lossy_config.activation_offload
    reason = "as it keeps the inputs of checkpointed blocks on the GPU"
    assert f"activation_offload: true was measured; torchtitan has false, {reason}" in rendered.lossy


def test_lightnings_module_applies_it() -> None:
    lossy = lightning.render(source_of(FSDP2)).lossy
    assert "activation_offload: apply it (blocks' inputs in host memory) in your module: see train_snippet.py" in lossy
