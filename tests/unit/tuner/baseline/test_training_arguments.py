"""Arguments of transformers' Trainer as baselines: read as transformers reads them."""

import ast
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.tuner.baseline import training_arguments
from tests.unit.tuner.baseline.library_files import BF16, TRAINER, read, strategy


def test_trainers_arguments_give_ddp_with_its_options() -> None:
    inputs = TRAINER | {"ddp_bucket_cap_mb": 50, "gradient_checkpointing": True, "logging_steps": 5, "colour": "red"}
    config, notes = read(inputs)
    ddp = DdpConfig(bucket_cap_mb=50)
    assert config == TrialConfig(strategy=ddp, micro_batch=8, activation_checkpointing="full")
    assert any("baseline.colour" in note for note in notes) and not any("logging_steps" in note for note in notes)


def test_a_static_graph_that_accumulates_without_reductions_is_rejected() -> None:
    """torch 2.13 fails in the reducer (`expect_autograd_hooks_`), or skips reductions."""
    whole = TRAINER | {"ddp_static_graph": True}
    assert strategy(whole).static_graph
    twice = whole | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    with pytest.raises(ValueError, match=r"baseline static_graph \(true\) with 2 micro batches .*set it to false"):
        read(twice)
    kwargs = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    assert strategy(twice | {"accelerator_config": kwargs}).static_graph


@pytest.mark.parametrize("sharding", [{}, {"fsdp": True}], ids=["ddp", "fsdp2"])
def test_the_trainer_reduces_each_micro_batch_where_it_is_told_to(sharding: dict[str, Any]) -> None:
    kwargs = {"gradient_accumulation_kwargs": {"sync_each_batch": True}, "split_batches": False}
    inputs = TRAINER | sharding | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    config, notes = read(inputs | {"accelerator_config": kwargs})
    assert config is not None and config.strategy.sync_policy == "every"
    assert "baseline.accelerator_config.split_batches is not applied" in notes
    assert not any("sync_each_batch" in note or note == "baseline.accelerator_config is not applied" for note in notes)
    assert strategy(inputs).sync_policy == "last"


def test_the_trainer_checkpoints_every_nth_block_where_it_is_told_to() -> None:
    inputs = TRAINER | {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"every_n_layers": 3}}
    config, notes = read(inputs)
    assert config is not None and (config.activation_checkpointing, config.checkpoint_every) == ("full", 3)
    assert "the Trainer checkpoints blocks 1, 4, …; measured with blocks 3, 6, …" in notes
    with pytest.raises(ValueError, match=r"activation_checkpointing_kwargs.every_n_layers \(0\) must be at least 1"):
        read(inputs | {"activation_checkpointing_kwargs": {"every_n_layers": 0}})


@pytest.mark.parametrize("key", ["packing", "completion_only_loss", "use_peft"])
def test_a_file_of_trl_checkpoints_unless_it_says_otherwise(key: str) -> None:
    """TRL's SFTConfig has another default than TrainingArguments."""
    said = "baseline.gradient_checkpointing is absent, which means true in TRL; measured with full checkpointing"
    config, notes = read(TRAINER | {key: False})
    assert config is not None and config.activation_checkpointing == "full" and said in notes
    for own in ({"gradient_checkpointing": False}, {"activation_checkpointing": False}):
        stated, notes = read(TRAINER | {key: False, **own})
        assert stated is not None and stated.activation_checkpointing == "none" and said not in notes
    plain = read(TRAINER)
    assert plain.config is not None and plain.config.activation_checkpointing == "none"
    of_fsdp = read(TRAINER | {key: False, "fsdp": True, "fsdp_config": {"activation_checkpointing": False}}).config
    assert of_fsdp is not None and of_fsdp.activation_checkpointing == "none"


def test_ligers_loss_without_all_logits_in_memory_is_noted_with_the_knob_that_has_it() -> None:
    config, notes = read(TRAINER | {"use_liger_kernel": True})
    assert config is not None and config.loss == "full"
    said = "baseline.use_liger_kernel (true) is not applied: trials have none of its kernels"
    (note,) = [note for note in notes if note.startswith(said)]
    assert note.endswith("a baseline in Shardtune's words may have loss 'chunked'")
    assert not any("chunk" in note or "liger" in note for note in read(TRAINER | {"use_liger_kernel": False}).notes)


@pytest.mark.parametrize("loss", ["dft", "sigmoid", ["ipo", "sft"]])
def test_a_loss_that_trains_something_else_is_rejected(loss: Any) -> None:
    with pytest.raises(
        ValueError, match=r"baseline\.loss_type \(.*\) changes what is trained, .*; use nll, or drop it"
    ):
        read(TRAINER | {"loss_type": loss})


@pytest.mark.parametrize(
    ("key", "intended"),
    [
        ("per_device_train_batchsize", "per_device_train_batch_size"),
        ("gradient_accumulation_step", "gradient_accumulation_steps"),
        ("learningrate", "learning_rate"),
    ],
)
@pytest.mark.parametrize("around", [{"output_dir": "out"}, {"bf16": True}])
def test_a_misspelt_training_argument_is_named_as_such(key: str, intended: str, around: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"baseline.{key} is no key of TrainingArguments; did you mean {intended}\?"):
        read(around | {key: 2})


def test_a_misspelt_batch_size_alone_is_one_of_training_arguments() -> None:
    with pytest.raises(ValueError, match="did you mean per_device_train_batch_size"):
        read({"per_device_train_batchsize": 2})


def test_no_field_of_training_arguments_is_taken_for_a_misspelling() -> None:
    package = find_spec("transformers")
    assert package is not None and package.origin is not None
    tree = ast.parse((Path(package.origin).parent / "training_args.py").read_text())
    next_run = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments")
    fields = [
        node.target.id
        for node in next_run.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    assert "learning_rate" in fields and [name for name in fields if training_arguments.intended_field(name)] == []


def test_defaults_of_training_arguments_are_told_from_what_the_file_says() -> None:
    with pytest.raises(ValueError, match=r"\(8 \(default\) × 4 × 2 = 64\), but the workload's global_batch is 16"):
        read({"output_dir": "out", "bf16": True, "gradient_accumulation_steps": 4})


def test_another_optimizer_comes_with_the_line_to_add_to_the_study() -> None:
    with pytest.raises(ValueError, match="make them equal") as rejected:
        read(TRAINER | {"learning_rate": 0.001, "weight_decay": 0.0})
    line = '"optimizer": {"lr": 0.001, "weight_decay": 0.0}'
    assert f"({line} in the study's workload), or drop baseline.learning_rate" in str(rejected.value)
    adopted = BF16.model_validate(BF16.model_dump() | json.loads(f"{{{line}}}"))
    assert read(TRAINER | {"learning_rate": 0.001, "weight_decay": 0.0}, adopted).config is not None


def test_the_trainers_fsdp_is_version_2_and_its_legacy_words_are_read() -> None:
    assert strategy(TRAINER | {"fsdp": True}) == Fsdp2Config(dp_shard=2, grad_sync="last")
    assert strategy(TRAINER | {"fsdp": "shard_grad_op auto_wrap"}).reshard_after_forward is False
    old = strategy(TRAINER | {"fsdp": "full_shard", "fsdp_config": {"version": 1, "limit_all_gathers": False}})
    assert old == Fsdp1Config(dp_shard=2, backward_prefetch=None, use_orig_params=True, limit_all_gathers=False)


def test_the_trainers_deepspeed_is_read_as_deepspeed_reads_it() -> None:
    inputs = TRAINER | {"deepspeed": {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}}
    config, notes = read(inputs)
    assert not any("batch size" in note for note in notes)
    assert config is not None and isinstance(config.strategy, ZeroConfig) and config.micro_batch == 8
