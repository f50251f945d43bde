"""Exports keep to the budget of activations as the trial did, or say that their program does not."""

import ast

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Strategy, TrialConfig, ZeroConfig
from shardtune.tuner.export import accelerate, lightning, snippet, torchtitan
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.tools import axolotl
from shardtune.tuner.export.trainer import training_arguments, trl
from tests.support.values.synthetic_studies import contender_of, study_of
from tests.support.values.tuner_inputs import gpus, llama

FSDP2 = Fsdp2Config(dp_shard=2)
SETTING = "torch._functorch.config.activation_memory_budget = 0.5"
WHOLE_BLOCKS = "torch._dynamo.config.optimize_ddp = False"
"""Setting without which torch divides the graphs of blocks by DDP's buckets."""


def source_of(strategy: Strategy, budget: float = 0.5) -> ExportSource:
    config = TrialConfig(strategy=strategy, compile=True, activation_memory_budget=budget, micro_batch=2)
    study = study_of("llama-tiny", "bf16-mixed", gpus(1, 2), 8)
    return ExportSource(study, contender_of(config), llama("llama-tiny"))


@pytest.mark.parametrize(
    "strategy", [DdpConfig(), FSDP2, ZeroConfig(stage=2), Fsdp1Config(dp_shard=2, use_orig_params=True)], ids=repr
)
def test_the_script_sets_the_budget_before_it_compiles_the_blocks(strategy: Strategy) -> None:
    script = snippet.source(source_of(strategy))
    ast.parse(script)
    assert "import torch._functorch.config\n" in script and "BLOCKS = " in script
    assert script.index(SETTING) < script.index("    block.compile()")
    assert (WHOLE_BLOCKS in script) == (strategy.kind == "ddp")


def test_the_script_without_a_budget_has_none_of_it() -> None:
    assert "budget" not in snippet.source(source_of(FSDP2, budget=1.0))
    assert "budget" not in accelerate.document(source_of(FSDP2, budget=1.0))


def test_accelerate_and_lightning_say_what_the_reader_must_do() -> None:
    assert f"{SETTING}, before the first step; the blocks must have no dropout" in accelerate.document(source_of(FSDP2))
    both = f"{SETTING}; {WHOLE_BLOCKS}"
    assert f"{both}, before the first step" in accelerate.document(source_of(DdpConfig()))
    assert any(both in line for line in lightning.render(source_of(DdpConfig())).lossy)
    notes = lightning.render(source_of(FSDP2))
    assert any(SETTING in line and "in your module" in line for line in notes.lossy)
    assert notes.lossy_config.activation_memory_budget == 0.5


def test_torchtitan_has_a_policy_for_it() -> None:
    rendered = torchtitan.render(source_of(FSDP2))
    (text,) = rendered.files.values()
    ast.parse(text)
    assert "from torchtitan.distributed.activation_checkpoint import MemoryBudgetAC" in text
    assert "activation_checkpoint=MemoryBudgetAC.Config(memory_budget=0.5)," in text and "enable=True" in text
    assert not any("activation_memory_budget" in line for line in rendered.lossy)
    (plain,) = torchtitan.render(source_of(FSDP2, budget=1.0)).files.values()
    assert "activation_checkpoint=None," in plain and "MemoryBudgetAC" not in plain


@pytest.mark.parametrize("render", [training_arguments.render, trl.render, axolotl.render])
def test_programs_without_it_say_so_and_keep_their_default(render: object) -> None:
    rendered = render(source_of(FSDP2))  # type: ignore[operator]
    assert any(line.startswith("activation_memory_budget: 0.5 was measured") for line in rendered.lossy), rendered.lossy
    assert rendered.lossy_config.activation_memory_budget == 1
