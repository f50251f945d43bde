"""What the consumers of exports cannot express, and what their files say of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.studies.exports import ExportFormat
from shardtune.workers.rank import check_export
from tests.conformance.exports_consumers.exported_files import DDP, FSDP2, PLAIN_FSDP2, TORCHTITANS_GC, ZERO, exported


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
