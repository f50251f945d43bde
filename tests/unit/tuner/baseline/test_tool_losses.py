"""Losses of fine-tuning tools that no trial has: rejected where they weigh tokens, else named beside what is measured."""

from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline import ResolvedBaseline, resolve_with_notes

GPUS = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
TRAINED = Workload(sequence_length=64, global_batch=16)
AXOLOTL: dict[str, Any] = {"base_model": "x/y", "sequence_len": 64, "micro_batch_size": 2, "bf16": True}
SWIFT: dict[str, Any] = {"tuner_type": "full", "max_length": 64, "per_device_train_batch_size": 2}
SWIFT |= {"torch_dtype": "bfloat16"}
CUT_CROSS_ENTROPY = ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]


def read(values: dict[str, Any]) -> ResolvedBaseline:
    return resolve_with_notes(values, TRAINED, GPUS)


def test_the_plugin_of_cut_cross_entropy_alone_switches_it_on() -> None:
    """Its own key is true by default in axolotl 0.21."""
    said = "baseline.plugins switches cut cross entropy on, which is not applied: trials load no plugin of axolotl; measured"
    config, notes = read(AXOLOTL | {"plugins": CUT_CROSS_ENTROPY})
    assert config is not None and config.loss == "full"
    (note,) = [note for note in notes if "cut cross entropy" in note]
    assert note.startswith(said) and "the logits of a whole micro batch, which take more memory" in note
    by_colon = [name.replace(".Cut", ":Cut") for name in CUT_CROSS_ENTROPY]
    assert note in read(AXOLOTL | {"plugins": by_colon}).notes
    for stated in (True, False):
        assert not any(
            "switches" in n for n in read(AXOLOTL | {"plugins": CUT_CROSS_ENTROPY, "cut_cross_entropy": stated}).notes
        )
    (by_key,) = [
        n for n in read(AXOLOTL | {"plugins": CUT_CROSS_ENTROPY, "cut_cross_entropy": True}).notes if "chunked" in n
    ]
    assert by_key.startswith(
        "baseline.cut_cross_entropy is not applied: trials load no plugin of axolotl; measured with"
    )


def test_axolotls_chunked_cross_entropy_is_named_as_no_loss_in_chunks() -> None:
    """It chunks float32 copies of whole logits (axolotl 0.21)."""
    config, notes = read(AXOLOTL | {"chunked_cross_entropy": True})
    assert config is not None and config.loss == "full"
    assert any("axolotl computes all logits, with float32 copies of one of 8 parts; measured with" in n for n in notes)
    stated = read(AXOLOTL | {"chunked_cross_entropy": True, "chunked_cross_entropy_num_chunks": 4}).notes
    assert any("one of 4 parts" in note for note in stated) and not any("num_chunks" in note for note in stated)
    assert not any("chunked" in note for note in read(AXOLOTL | {"chunked_cross_entropy": False}).notes)


@pytest.mark.parametrize("scale", ["react", "hermes", "default+qwen", "last_round+hermes+ignore_empty_think", "my_own"])
def test_a_loss_of_ms_swift_that_weighs_tokens_is_rejected(scale: str) -> None:
    """Weights of 2 or 3 for parts of an answer; a loss by probability (`enable_dft_loss`) is rejected, too."""
    with pytest.raises(
        ValueError, match=r"baseline.loss_scale \('.*'\) weighs tokens, which no trial does; use all, base,"
    ):
        read(SWIFT | {"loss_scale": scale})
    assert read(SWIFT | {"loss_scale": scale, "is_binary_loss_scale": True}).config is not None
    with pytest.raises(ValueError, match=r"baseline.is_binary_loss_scale \('some'\) must be true or false"):
        read(SWIFT | {"loss_scale": scale, "is_binary_loss_scale": "some"})


@pytest.mark.parametrize("scale", ["default", "last_round", "all", "all+ignore_empty_think", "ignore_think_prefix"])
def test_a_choice_of_the_tokens_that_count_is_noted(scale: str) -> None:
    """It becomes labels of -100, as `completion_only_loss` in TRL, and changes no step of a trial."""
    notes = read(SWIFT | {"loss_scale": scale}).notes
    assert f"baseline.loss_scale ({scale!r}) is not applied: trials count every token of a sample" in notes
    assert not any("loss_scale" in note for note in read(SWIFT).notes)


def test_a_plugin_that_trains_otherwise_is_rejected_by_either_form_of_its_name() -> None:
    for end in (".", ":"):
        with pytest.raises(ValueError, match=r"baseline.plugins \('axolotl.integrations.kd"):
            read(AXOLOTL | {"plugins": [f"axolotl.integrations.kd{end}KDPlugin"]})
