"""Closed-form parameter counts against transformers, and what a config must contain."""

import pytest

from shardtune.api_schemas.training.model_presets import preset_names
from shardtune.api_schemas.training.models import ModelSpec, preset
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.tuner.prediction import prediction_request
from shardtune.tuner.prediction.shapes.config_shape import NoClosedForm, check_formula, from_config, unknown_keys
from shardtune.tuner.prediction.tensors import block_tensors, outside_tensors

SMALL = {
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
OTHERS = {
    "mistral": {**SMALL, "model_type": "mistral", "num_key_value_heads": 2},
    "qwen2": {**SMALL, "model_type": "qwen2", "num_key_value_heads": 2},
    "qwen3_moe": {**SMALL, "model_type": "qwen3_moe", "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4,
                  "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "gpt_neox": {**SMALL, "model_type": "gpt_neox"},
    "mpt": {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 1000},
    "llama, biases": {**SMALL, "model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "qwen3, biases": {**SMALL, "model_type": "qwen3", "num_key_value_heads": 2, "attention_bias": True},
    "mistral, bias unread": {**SMALL, "model_type": "mistral", "num_key_value_heads": 2, "attention_bias": True},
    "qwen3_moe, no head_dim": {**SMALL, "model_type": "qwen3_moe", "num_key_value_heads": 2, "num_experts": 4,
                               "num_experts_per_tok": 2, "moe_intermediate_size": 32, "attention_bias": True},
    "mpt, untied": {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 1000,
                    "expansion_ratio": 2, "tie_word_embeddings": False},
}  # fmt: skip


@pytest.mark.parametrize("name", [*OTHERS, "gpt2", "llama-tiny", "mixtral-tiny", "llama-3.2-1b", "qwen3-8b"])
def test_parameter_count_equals_transformers(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = dict(OTHERS.get(name) or preset(name).config)
    expected = from_config(config).parameters
    new_config = AutoConfig.for_model(config.pop("model_type"), **config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(new_config, trust_remote_code=False)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    shape = from_config(dict(OTHERS.get(name) or preset(name).config))
    ours = [*block_tensors(shape) * shape.layers, *outside_tensors(shape)]
    assert sorted(ours) == sorted(parameter.numel() for parameter in model.parameters())


def test_known_sizes() -> None:
    counts = {name: from_config(preset(name).config).parameters for name in ("llama-2-70b", "mixtral-8x7b")}
    assert counts == {"llama-2-70b": 68_976_648_192, "mixtral-8x7b": 46_702_792_704}
    assert from_config(preset("mixtral-8x7b").config).active_parameters == pytest.approx(12.9e9, rel=0.01)


def test_missing_field_is_named() -> None:
    config = {**preset("llama-2-7b").config}
    del config["intermediate_size"]
    with pytest.raises(ValueError, match="intermediate_size is missing"):
        from_config(config)


def test_heads_that_do_not_divide_are_rejected() -> None:
    config = {**preset("llama-2-7b").config, "num_key_value_heads": 5}
    with pytest.raises(ValueError, match="num_key_value_heads"):
        from_config(config)


def test_unknown_family_points_to_the_trace() -> None:
    with pytest.raises(ValueError, match="--trace"):
        from_config({"model_type": "mamba"})


@pytest.mark.parametrize(("field", "value"), [("mlp_only_layers", [0]), ("decoder_sparse_step", 2)])
def test_a_mixture_with_blocks_without_experts_has_to_be_built(field: str, value: object) -> None:
    mixture = {**OTHERS["qwen3_moe"], "mlp_only_layers": [], "decoder_sparse_step": 1}

    def resolve(**changes: object) -> None:
        model = ModelSpec.model_validate({"name": "mixture", "config": mixture | changes})
        prediction_request.resolve(PredictionRequest(model=model, cluster="8xh100"))

    resolve()
    with pytest.raises(NoClosedForm, match=rf"{field} \(.*--trace"):
        resolve(**{field: value})


@pytest.mark.parametrize(
    ("kind", "field", "value"), [("gpt_neox", "attention_bias", False), ("gpt2", "add_cross_attention", True)]
)
def test_a_model_whose_biases_or_blocks_are_unusual_has_to_be_built(kind: str, field: str, value: bool) -> None:
    config = {**(OTHERS.get(kind) or preset(kind).config)}
    check_formula(config)
    check_formula(config | {field: not value})
    with pytest.raises(NoClosedForm, match=rf"{field} \({value}\) .*--trace"):
        check_formula(config | {field: value})


def test_a_missing_field_that_is_nearly_there_is_named() -> None:
    config = {**preset("llama-2-7b").config}
    config["num_hidden_layer"] = config.pop("num_hidden_layers")
    with pytest.raises(ValueError, match=r"it has num_hidden_layer: did you mean num_hidden_layers\?"):
        from_config(config)


def test_keys_that_are_nearly_read_are_noted_and_others_are_not() -> None:
    config = {**preset("llama-2-7b").config, "num_hidden_layer": 3, "rope_theta": 1e4, "colour": "red"}
    config["num_key_value_head"] = config.pop("num_key_value_heads")
    assert sorted(note.split()[0] for note in unknown_keys(config)) == ["num_hidden_layer", "num_key_value_head"]
    assert all(unknown_keys(preset(name).config) == () for name in preset_names())
    assert unknown_keys({"model_type": "gemma2", "num_hidden_layer": 2}) == ()


def test_other_names_that_transformers_takes_and_writes_are_read() -> None:
    other = {**OTHERS["qwen3_moe"]}
    other["num_local_experts"] = other.pop("num_experts")
    assert from_config(other) == from_config(OTHERS["qwen3_moe"])
    gpt2 = {"model_type": "gpt2", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3, "vocab_size": 9}
    assert (from_config(gpt2).hidden, from_config(gpt2).layers) == (8, 3)
