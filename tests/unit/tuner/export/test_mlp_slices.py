"""Exports compute MLPs in slices as the trial did, or say that their program does not."""

import ast
from collections.abc import Callable
from typing import Any

import pytest
import torch

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Strategy, TrialConfig, ZeroConfig
from shardtune.tuner.export import accelerate, lightning, snippet, torchtitan
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill
from shardtune.tuner.export.tools import axolotl
from shardtune.tuner.export.trainer import training_arguments, trl
from tests.support.values.synthetic_studies import contender_of, study_of
from tests.support.values.tuner_inputs import gpus, llama

FSDP2 = Fsdp2Config(dp_shard=2)
GPU = gpus(1, 2)


def source_of(strategy: Strategy, mode: str = "none", slices: int = 4) -> ExportSource:
    config = TrialConfig.model_validate(
        {"strategy": strategy, "activation_checkpointing": mode, "mlp_slices": slices, "micro_batch": 2}
    )
    return ExportSource(study_of("llama-tiny", "bf16-mixed", GPU, 8), contender_of(config), llama("llama-tiny"))


@pytest.mark.parametrize("mode", ["none", "full", "selective"])
@pytest.mark.parametrize("strategy", [DdpConfig(), FSDP2, ZeroConfig(stage=2), Fsdp1Config(dp_shard=2)])
def test_the_script_slices_each_mlp_before_it_checkpoints_the_block(strategy: Strategy, mode: str) -> None:
    script = snippet.source(source_of(strategy, mode))
    ast.parse(script)
    assert "MLP_SLICES = 4\n" in script and "def slice_mlp(block" in script and "BLOCKS = " in script
    assert "from collections.abc import Callable, Iterator, Sequence" in script
    if mode != "none":
        assert script.index("    slice_mlp(block)") < script.index("    checkpointed(block)")
    assert ("if operator in KEPT and not Slice.running else" in script) == (mode == "selective")


def test_the_script_of_a_whole_mlp_has_none_of_it() -> None:
    script = snippet.source(source_of(FSDP2, "selective", slices=1))
    assert "slice" not in script.casefold().replace("islice", "") and "if operator in KEPT else" in script


def test_accelerate_and_lightning_say_what_the_reader_must_do() -> None:
    assert "MLP in 4 slices: take slice_mlp, its classes and its loop from train_snippet.py" in accelerate.document(
        source_of(FSDP2)
    )
    notes = lightning.render(source_of(FSDP2)).lossy
    note = next(
        line for line in notes if line.startswith("mlp_slices: apply it in your module (4 slices of the tokens)")
    )
    assert "the MLP must have no dropout" in note
    assert "the MLP must have no dropout" in accelerate.document(source_of(FSDP2))


def test_the_scripts_function_rejects_an_mlp_with_dropout() -> None:
    """A user may put dropout back, and backward would draw another mask than forward."""
    names: dict[str, Any] = {"torch": torch, "Callable": Callable, "MLP_SLICES": 4}
    exec(fill("mlp_slices"), names)
    block = torch.nn.Module()
    block.mlp = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1))
    with pytest.raises(ValueError, match="leave out dropout or slice_mlp"):
        names["slice_mlp"](block)
    block.mlp = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.0))
    names["slice_mlp"](block)
    assert block.mlp(torch.ones(2, 3, 8)).shape == (2, 3, 8)


@pytest.mark.parametrize("render", [training_arguments.render, torchtitan.render, trl.render, axolotl.render])
def test_programs_without_it_say_so_and_run_whole_mlps(render: object) -> None:
    rendered = render(source_of(FSDP2))  # type: ignore[operator]
    assert any(line.startswith("mlp_slices: 4 was measured") for line in rendered.lossy), rendered.lossy
    assert rendered.lossy_config.mlp_slices == 1
