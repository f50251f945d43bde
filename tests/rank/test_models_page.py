"""docs/reference/models.md says of each architecture what happens to it: this walks its table."""

import json
import os
import re
from pathlib import Path

import pytest

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction.shapes import config_shape
from shardtune.workers.rank.training import model_summary

PAGE = Path(__file__).parents[2] / "docs/reference/models.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([\w ]+) \| `(\{.*\})` \|$", re.MULTILINE)
ROWS = [
    (kind, attention, predicted, json.loads(more)) for kind, attention, predicted, more in ROW.findall(PAGE.read_text())
]
SIZES = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "head_dim": 16}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128}
WORKLOAD = Workload(sequence_length=32, global_batch=4)
OFTEN = ("gpt_oss", "gemma2")
"""Walked in every run: what needs another attention, and a mixture of experts. Each costs an import."""


def config_of(kind: str, more: dict[str, object]) -> dict[str, object]:
    own = {"gpt2": (), "mpt": ()}.get(kind)
    return {"model_type": kind, "vocab_size": 256, **(SIZES if own is None else {}), **more}


@pytest.mark.parametrize(("kind", "attention", "predicted", "more"), ROWS, ids=[row[0] for row in ROWS])
def test_the_table_says_what_happens(kind: str, attention: str, predicted: str, more: dict[str, object]) -> None:
    if kind not in OFTEN and os.environ.get("SHARDTUNE_TEST_LONG") != "1":
        pytest.skip("every architecture is walked with SHARDTUNE_TEST_LONG=1")
    config = config_of(kind, more)
    actual = model_summary.of(ModelSpec(name="m", config=config), WORKLOAD)
    assert (actual.attention or "sdpa") == attention
    if actual.forward_flops_per_token is None:
        assert predicted == "nothing", actual.note
    else:
        assert predicted == ("closed form" if kind in config_shape.FAMILIES else "counted")
    assert len(actual.blocks) == 2


def test_the_table_was_found() -> None:
    assert len(ROWS) > 15


def test_of_a_multimodal_model_the_text_part_is_built() -> None:
    text = config_of("gemma3_text", {})
    model_spec = ModelSpec(
        name="m", config={"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 32}}
    )
    assert model_summary.of(model_spec, WORKLOAD) == model_summary.of(ModelSpec(name="m", config=text), WORKLOAD)
