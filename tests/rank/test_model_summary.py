"""Profiles of the presets against the published sizes of these models."""

import functools

import pytest
import torch
from transformers import AutoModelForCausalLM, masking_utils

from shardtune.api_schemas.training.model_presets import preset_sources
from shardtune.api_schemas.training.models import ModelSpec, ModelSummary, preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.tuner.prediction import traced_shape
from shardtune.tuner.search import fastest
from shardtune.workers.rank import count_model
from shardtune.workers.rank.model.build import config_of
from shardtune.workers.rank.training import model_summary
from shardtune.workers.rank.training.step import CausalStep
from tests.support.long_run import telling, wide

WORKLOAD = Workload(sequence_length=256, global_batch=8)


@functools.cache
def summary_of(name: str) -> ModelSummary:
    """Summary of a preset, made once."""
    return model_summary.of(preset(name), WORKLOAD)


@pytest.mark.parametrize(
    ("name", "parameters", "blocks", "block_class"),
    [
        ("gpt2", 124_439_808, 12, "GPT2Block"),
        ("llama-2-7b", 6_738_415_616, 32, "LlamaDecoderLayer"),
        wide("llama-2-70b", 68_976_648_192, 80, "LlamaDecoderLayer"),
        wide("llama-3.2-1b", 1_235_814_400, 16, "LlamaDecoderLayer"),
        ("qwen3-8b", 8_190_735_360, 36, "Qwen3DecoderLayer"),
    ],
)
def test_sizes_are_the_published_ones(name: str, parameters: int, blocks: int, block_class: str) -> None:
    actual = summary_of(name)
    assert (actual.parameters, len(actual.blocks), actual.block_class) == (parameters, blocks, block_class)
    assert actual.active_parameters == parameters and actual.moe_class is None


COUNTED = ("gemma-3-4b", "gpt-oss-20b", "olmo-2-7b", "phi-4", "smollm3-3b")
"""Presets without a closed form, one of each family; their counts are those of the built model."""


@pytest.mark.parametrize("name", telling(COUNTED, ["gemma-3-4b", "gpt-oss-20b"]))
def test_presets_that_have_to_be_built_have_their_published_sizes(name: str) -> None:
    model = preset(name)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config_of(model))
    assert sum(weight.numel() for weight in built.parameters()) == preset_sources()[name].parameters


def test_a_mixture_of_experts_uses_a_part_of_itself_per_token() -> None:
    actual = model_summary.of(preset("mixtral-8x7b"), WORKLOAD)
    assert (actual.parameters, actual.active_parameters) == (46_702_792_704, 12_879_925_248)
    assert actual.moe_class == "MixtralSparseMoeBlock"


def test_what_a_mask_hides_is_not_in_the_least_that_a_token_costs() -> None:
    """Masked positions are left out, so that a fused kernel at a long sequence does not exceed the peak rate."""
    long = WORKLOAD.model_copy(update={"sequence_length": 32_768})
    actual = model_summary.of(preset("llama-tiny"), long)
    halved = model_summary.of(preset("llama-tiny"), WORKLOAD.model_copy(update={"sequence_length": 16_384}))
    assert actual.least_flops_per_token == halved.forward_flops_per_token
    assert actual.forward_flops_per_token is not None and actual.least_flops_per_token is not None
    assert actual.least_flops_per_token < 0.6 * actual.forward_flops_per_token


def test_our_samples_are_not_searched_for_packed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading values waits for the device in each forward, and is an error for tensors without values."""
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", masking_utils.find_packed_sequence_indices)
    trained = CausalStep(preset("llama-tiny"), WORKLOAD)
    model = trained.build_model().to("meta")
    assert trained.loss(model, torch.zeros(2, 16, dtype=torch.int64, device="meta")).is_meta


def test_flops_are_two_per_active_weight_and_the_attention() -> None:
    config = preset("llama-2-7b").config
    actual = summary_of("llama-2-7b")
    embedding = config["vocab_size"] * config["hidden_size"]
    attention = 4 * config["num_hidden_layers"] * config["hidden_size"] * WORKLOAD.sequence_length
    assert actual.forward_flops_per_token == pytest.approx(2 * (actual.parameters - embedding) + attention, rel=1e-3)
    blocks = sum(block.forward_flops_per_token for block in actual.blocks)
    assert blocks == pytest.approx(actual.forward_flops_per_token - 2 * embedding, rel=1e-6)


def test_a_model_is_counted_for_predictions_at_its_own_length() -> None:
    """Count that `predict` needs where an architecture has no closed form."""
    small = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
    config = small | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    model = ModelSpec(name="g", config=config | {"model_type": "gemma2", "max_position_embeddings": 128})
    counts = count_model.count(model)
    assert counts == count_model.count(model, 128) != count_model.count(model, 64)
    request = PredictionRequest(model=model, cluster="8xh100", model_summary=counts, top=1)
    table = fastest.answer_request(request)
    assert (table.parameters, table.sequence_length) == (counts.parameters, 128) and table.fastest


def test_an_unknown_architecture_is_named() -> None:
    unknown = preset("gpt2").model_copy(update={"config": {"model_type": "no-such-model"}})
    with pytest.raises(ValueError, match="no-such-model"):
        model_summary.of(unknown, WORKLOAD)


def test_a_model_that_the_meta_device_cannot_run_is_described_without_its_flops() -> None:
    """Trials of such a model may run."""
    small = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2}
    config = small | {
        "model_type": "mamba2",
        "num_heads": 4,
        "head_dim": 16,
        "state_size": 16,
        "n_groups": 1,
        "expand": 2,
    }
    actual = model_summary.of(ModelSpec(name="mamba2", config=config), WORKLOAD)
    assert actual.parameters > 0 and actual.vocab_size == 256
    assert actual.forward_flops_per_token is None and "could not be counted" in (actual.note or "")
    assert traced_shape.of_study(ModelSpec(name="mamba2", config=config), actual) is None
