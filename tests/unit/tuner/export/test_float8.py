"""What exported files say about float8."""

from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.tuner.export import accelerate, lightning, snippet, torchtitan
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.tools import axolotl, llama_factory, ms_swift
from shardtune.tuner.export.trainer import training_arguments
from tests.support.values.synthetic_studies import contender_of, study_of, with_float8

GPU = Cluster(gpu="H100-SXM5-80GB", gpus_per_node=2, memory_gib=79, host_memory_gib=800)


def source(recipe: str | None, cluster: Any = None, **config: Any) -> ExportSource:
    options = {} if cluster is None else {"cluster": cluster, "precision": "bf16-mixed"}
    trial = TrialConfig(**{"strategy": Fsdp2Config(dp_shard=2), "micro_batch": 2} | config)
    return ExportSource.of(with_float8(study_of(**options), recipe), contender_of(trial))


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_the_script_converts_the_blocks_and_emulates_on_cpu_ranks_alone(recipe: str) -> None:
    on_cpu, on_gpu = snippet.source(source(recipe)), snippet.source(source(recipe, GPU))
    for text in (on_cpu, on_gpu):
        compile(text, "train_snippet.py", "exec")
        assert "convert_to_float8_training(model.get_submodule(BLOCKS), config=FLOAT8)" in text
        assert "from torchao.float8 import Float8LinearConfig, convert_to_float8_training" in text
        assert text.count("\nBLOCKS = ") == 1
    assert f'FLOAT8 = replace(Float8LinearConfig.from_recipe_name("{recipe}"), emulate=True)' in on_cpu
    assert f'FLOAT8 = Float8LinearConfig.from_recipe_name("{recipe}")\n' in on_gpu
    assert "float8" not in snippet.source(source(None)).lower()


def test_the_script_gathers_in_float8_and_scales_after_each_step() -> None:
    gathered = Fsdp2Config(dp_shard=2, float8_gather=True)
    for cluster, emulated in ((None, ", emulate=True"), (GPU, "")):
        text = snippet.source(source("tensorwise", cluster, strategy=gathered))
        compile(text, "train_snippet.py", "exec")
        recipe = f'Float8LinearConfig.from_recipe_name("tensorwise"), enable_fsdp_float8_all_gather=True{emulated}'
        assert f"FLOAT8 = replace({recipe})" in text and "from dataclasses import replace" in text
        assert "self.optimizer.step()\n        precompute_float8_dynamic_scale_for_fsdp(self.model)\n" in text
    assert "precompute" not in snippet.source(source("tensorwise", GPU))


def test_programs_say_what_they_make_of_gathers_in_float8() -> None:
    gathered = source("tensorwise", GPU, strategy=Fsdp2Config(dp_shard=2, float8_gather=True))
    note = "float8_gather: weights were gathered in float8; give FLOAT8 enable_fsdp_float8_all_gather=True, and call"
    assert note in accelerate.document(gathered)
    for rendered in (training_arguments.render(gathered), lightning.render(gathered)):
        assert any(line.startswith(note) for line in rendered.lossy)
    titan = torchtitan.render(gathered)
    assert "float8_gather: true was measured; torchtitan has false, as it has no float8 gathers (0.3)" in titan.lossy
    assert titan.lossy_config.strategy == Fsdp2Config(dp_shard=2)
    for tool in (axolotl, llama_factory, ms_swift):
        assert any(
            "without it and without its gathers (float8_gather) in" in line for line in tool.render(gathered).lossy
        )


def test_torchtitan_gets_its_converter_and_says_where_it_scales_otherwise() -> None:
    files = {}
    for recipe in ("tensorwise", "rowwise", None):
        rendered = torchtitan.render(source(recipe, GPU, compile=True))
        files[recipe] = rendered.files[torchtitan.FILE]
        compile(files[recipe], torchtitan.FILE, "exec")
        said = [line for line in rendered.lossy if line.startswith("float8")]
        assert said == (
            ["float8: tensorwise scaling was measured; torchtitan 0.3 scales rowwise"] if recipe == "tensorwise" else []
        )
    converter = (
        'Float8LinearConverter.Config(recipe_name="rowwise", filter_fqns=["lm_head"], model_compile_enabled=True)'
    )
    assert converter in files["rowwise"] and converter in files["tensorwise"]
    assert "Float8" not in files[None] and "emulate=True" not in files["rowwise"]
    emulated = torchtitan.render(source("rowwise", compile=True))
    assert "model_compile_enabled=False, emulate=True" in emulated.files[torchtitan.FILE]
    assert "CompileConfig(enable=False" in emulated.files[torchtitan.FILE]
    assert "float8: rowwise scaling was measured; torchtitan 0.3 scales tensorwise on CPU ranks" in emulated.lossy
    assert not any(line.startswith("float8") for line in torchtitan.render(source("tensorwise")).lossy)


def test_programs_whose_caller_makes_the_model_say_what_to_convert() -> None:
    note = "float8: float8 (tensorwise) of the blocks' linear layers was measured; convert the model by torchao in"
    low = source("tensorwise", GPU)
    assert note in accelerate.document(low)
    for rendered in (training_arguments.render(low), lightning.render(low)):
        assert any(line.startswith(note) for line in rendered.lossy)
    assert "float8" not in accelerate.document(source(None, GPU))


@pytest.mark.parametrize("tool", [axolotl, llama_factory, ms_swift], ids=lambda module: module.__name__.split(".")[-1])
def test_fine_tuning_tools_list_it_as_lost(tool: Any) -> None:
    trial = contender_of(TrialConfig(strategy=DdpConfig(), micro_batch=2))
    for recipe in ("rowwise", None):
        study = with_float8(study_of(cluster=GPU, precision="bf16-true"), recipe)
        lost = [line for line in tool.render(ExportSource.of(study, trial)).lossy if line.startswith("float8")]
        assert bool(lost) is (recipe is not None)
        assert all("float8 (rowwise) was measured; this file trains without it" in line for line in lost)
