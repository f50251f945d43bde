"""Presets against the published sizes of their models, and what is said of those that no formula describes."""

import pytest

from shardtune.api_schemas.training.model_presets import preset_config, preset_names, preset_of, preset_sources
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.tuner.prediction import traced_shape, trainable
from shardtune.tuner.prediction.shapes import config_shape
from shardtune.tuner.search import fastest

TINY = {"gpt2-tiny", "llama-tiny", "mixtral-tiny"}
"""Presets of our own, for tests and first studies."""
CLOSED = [name for name in preset_names() if preset_config(name)["model_type"] in config_shape.FAMILIES]
MANY = 15


@pytest.mark.parametrize("name", [name for name in CLOSED if name not in TINY])
def test_a_presets_parameters_are_those_published(name: str) -> None:
    assert config_shape.from_config(preset_config(name)).parameters == preset_sources()[name].parameters


def test_every_preset_of_a_published_model_has_its_source() -> None:
    assert set(preset_sources()) == set(preset_names()) - TINY
    assert len({preset_config(name)["model_type"] for name in preset_sources()}) >= MANY - 4
    for name, source in preset_sources().items():
        trainable.check(preset(name))
        assert preset_of(source.hub) == name and source.hub.count("/") == 1
        # What is left out of a repository is said.
        assert bool(source.untrained) <= bool(source.note)


def test_latent_attention_is_not_predicted_as_something_else() -> None:
    with pytest.raises(ValueError, match=r"kv_lora_rank \(512\) is latent attention"):
        fastest.answer_request(PredictionRequest.model_validate({"model": "deepseek-v3", "cluster": "64xh100"}))


def test_a_window_that_the_sequence_exceeds_is_noted() -> None:
    config = preset_config("mistral-7b") | {"sliding_window": 4096}
    for sequence, is_noted in ((4096, False), (8192, True)):
        request = {"model": config, "cluster": "8xh100", "sequence_length": sequence, "top": 0}
        table = fastest.answer_request(PredictionRequest.model_validate(request))
        assert any(note.startswith("sliding_window (4096)") for note in table.notes) == is_noted


@pytest.mark.parametrize(
    ("changes", "is_used"),
    [
        ({"model_type": "qwen2", "use_sliding_window": False}, False),
        ({"model_type": "qwen2", "use_sliding_window": True}, True),
        ({"model_type": "qwen2"}, False),
        ({"model_type": "gpt_oss", "layer_types": ["sliding_attention", "full_attention"]}, True),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, False),
    ],
)
def test_a_window_counts_only_where_layers_use_it(changes: dict[str, object], is_used: bool) -> None:
    note = traced_shape.window_note(changes | {"sliding_window": 128}, 256)
    assert (note is not None) == is_used
