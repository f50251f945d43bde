"""Exports compile the chunks of the loss as the trial did, or say that their program does not."""

import ast
from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, Strategy, TrialConfig, ZeroConfig
from shardtune.tuner.export import accelerate, lightning, snippet, torchtitan
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.tools import axolotl, llama_factory, ms_swift
from shardtune.tuner.export.trainer import training_arguments, trl
from tests.support.values.synthetic_studies import contender_of, study_of
from tests.support.values.tuner_inputs import gpus, llama

FSDP2 = Fsdp2Config(dp_shard=2)
SPLIT = Fsdp2Config(dp_shard=1, tensor_parallel=2)
WORDS = "compiled chunks of 1,024 tokens"


def source_of(strategy: Strategy, **changes: Any) -> ExportSource:
    fields = {"strategy": strategy, "loss": "chunked", "loss_compile": True, "gc_every": 50}
    config = TrialConfig.model_validate(fields | changes)
    return ExportSource(study_of("llama-tiny", "bf16-mixed", gpus(1, 2), 8), contender_of(config), llama("llama-tiny"))


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("strategy", [DdpConfig(), FSDP2, ZeroConfig(stage=3), SPLIT], ids=repr)
def test_the_script_compiles_a_chunk_as_one_graph_if_the_trial_did(strategy: Strategy, is_compiled: bool) -> None:
    script = snippet.source(source_of(strategy, loss_compile=is_compiled))
    defined = {node.name for node in ast.walk(ast.parse(script)) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert {"ChunkedHead", "SummedLoss", "sum_of", "gradient_of", "chunk_loss", "loss_of"} <= defined
    assert ("compiled_gradient" in defined) == ("@torch.compile(fullgraph=True)" in script) == is_compiled
    assert ("compiled_largest" in defined) == (is_compiled and strategy is SPLIT)


def test_the_script_imports_what_compiled_chunks_use_with_context_parallelism_too() -> None:
    script = snippet.source(source_of(FSDP2, context_parallel=2))
    (line,) = (line for line in script.split("\n") if line.startswith("from torch.nn.functional import"))
    assert {"linear", "pad"} <= set(line.removeprefix("from torch.nn.functional import ").split(", "))


def test_accelerate_and_lightning_say_what_the_reader_must_do() -> None:
    assert f"loss in {WORDS}: take ChunkedHead" in accelerate.document(source_of(FSDP2))
    assert any(WORDS in line and "in your module" in line for line in lightning.render(source_of(FSDP2)).lossy)


@pytest.mark.parametrize(
    ("changes", "components"),
    [
        ({}, 'enable=True, components=["loss"]'),
        ({"compile": True}, 'enable=True, components=["model", "loss"]'),
        ({"compile": True, "loss_compile": False}, 'enable=True, components=["model"]'),
        ({"loss_compile": False}, 'enable=False, components=["model"]'),
    ],
)
def test_torchtitan_compiles_what_the_trial_compiled(changes: dict[str, Any], components: str) -> None:
    rendered = torchtitan.render(source_of(FSDP2, **changes))
    (text,) = rendered.files.values()
    ast.parse(text)
    assert f"compile=CompileConfig({components})," in text
    assert not any("compile" in line for line in rendered.lossy)


def test_torchtitan_has_no_chunks_to_compile_with_pipeline_stages() -> None:
    rendered = torchtitan.render(source_of(Fsdp2Config(dp_shard=1, pipeline_parallel=2)))
    (text,) = rendered.files.values()
    assert 'compile=CompileConfig(enable=False, components=["model"]),' in text
    assert "loss_compile: true was measured; torchtitan has false" in rendered.lossy
    TrialConfig.model_validate(rendered.lossy_config.model_dump())


@pytest.mark.parametrize(
    "render", [training_arguments.render, trl.render, axolotl.render, llama_factory.render, ms_swift.render]
)
def test_programs_that_compile_no_loss_say_so(render: Any) -> None:
    rendered = render(source_of(FSDP2))
    assert any("loss_compile: true" in line or "compiled chunks of 1024 tokens" in line for line in rendered.lossy)
    assert not rendered.lossy_config.loss_compile
    TrialConfig.model_validate(rendered.lossy_config.model_dump())
