"""Exports keep the results that the trial kept, or say which others their program keeps."""

import ast
from dataclasses import replace
from typing import Any

import pytest

from shardtune.api_schemas.strategies import (
    DdpConfig,
    Fsdp1Config,
    Fsdp2Config,
    SelectiveKeeps,
    Strategy,
    TrialConfig,
    ZeroConfig,
)
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.tuner.export import accelerate, lightning, snippet, torchtitan
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.tools import axolotl
from shardtune.tuner.export.trainer import training_arguments, trl
from tests.support.values.synthetic_studies import contender_of, study_of
from tests.support.values.tuner_inputs import gpus, llama

FSDP2 = Fsdp2Config(dp_shard=2)


def source_of(strategy: Strategy, keeps: SelectiveKeeps, **changes: Any) -> ExportSource:
    fields = {"strategy": strategy, "activation_checkpointing": "selective", "selective_keeps": keeps, "gc_every": 50}
    config = TrialConfig.model_validate(fields | changes)
    return ExportSource(study_of("llama-tiny", "bf16-mixed", gpus(1, 2), 8), contender_of(config), llama("llama-tiny"))


@pytest.mark.parametrize(
    "strategy", [DdpConfig(), FSDP2, ZeroConfig(stage=2), Fsdp1Config(dp_shard=2, use_orig_params=True)], ids=repr
)
@pytest.mark.parametrize("keeps", ["products", "second_products", "attention"])
def test_the_script_has_the_policy_of_the_trial(strategy: Strategy, keeps: SelectiveKeeps) -> None:
    script = snippet.source(source_of(strategy, keeps))
    ast.parse(script)
    assert ("PRODUCTS = operators(" in script) == (keeps == "second_products")
    assert ('"mm",' in script) == (keeps != "attention")
    assert '"_scaled_dot_product_flash_attention",' in script
    assert ("import functools" in script) == (keeps != "second_products")


def test_the_script_keeps_no_product_in_a_slice_of_an_mlp() -> None:
    script = snippet.source(source_of(FSDP2, "second_products", mlp_slices=4))
    assert "if operator in PRODUCTS and not Slice.running:" in script


def test_accelerate_and_lightning_say_what_the_reader_must_do() -> None:
    words = "selective checkpointing, which keeps the results of attention alone"
    assert f"{words}: take `checkpointed`" in accelerate.document(source_of(FSDP2, "attention"))
    assert any(
        words in line and "in your module" in line for line in lightning.render(source_of(FSDP2, "attention")).lossy
    )
    assert "which keeps" not in accelerate.document(source_of(FSDP2, "products"))


def test_torchtitan_has_a_policy_for_each_but_all_products() -> None:
    rendered = torchtitan.render(source_of(FSDP2, "second_products"))
    (text,) = rendered.files.values()
    ast.parse(text)
    assert "activation_checkpoint=SelectiveAC.Config(preserve_rng_state=False)," in text
    assert not any("selective_keeps" in line for line in rendered.lossy)
    rendered = torchtitan.render(source_of(FSDP2, "attention"))
    (text,) = rendered.files.values()
    ast.parse(text)
    assert "class AttentionAC(SelectiveAC):" in text
    assert "activation_checkpoint=AttentionAC.Config(preserve_rng_state=False)," in text
    assert not any("selective_keeps" in line for line in rendered.lossy)
    rendered = torchtitan.render(source_of(FSDP2, "products"))
    assert "selective_keeps: products was measured; torchtitan has second_products" in rendered.lossy
    assert rendered.lossy_config.selective_keeps == "second_products"


@pytest.mark.parametrize(
    ("keeps", "saved"),
    [
        ("products", ["attention", "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_grouped_mm"]),
        ("attention", ["attention"]),
    ],
)
def test_axolotl_has_a_list_of_operators(keeps: SelectiveKeeps, saved: list[str]) -> None:
    rendered = axolotl.render(source_of(FSDP2, keeps))
    (text,) = (content for name, content in rendered.files.items() if name == axolotl.CONFIG)
    assert all(f"- {name}\n" in text for name in saved)
    assert ("aten::" in text) == (keeps == "products")
    assert not any("selective" in line for line in rendered.lossy)
    assert rendered.lossy_config.selective_keeps == keeps


def test_axolotl_keeps_attention_alone_instead_of_every_second_product() -> None:
    rendered = axolotl.render(source_of(FSDP2, "second_products"))
    notes = [line for line in rendered.lossy if "selective" in line]
    assert notes == ["selective_keeps: second_products was measured; axolotl has attention, as it counts no products"]
    assert rendered.lossy_config.selective_keeps == "attention"
    TrialConfig.model_validate(rendered.lossy_config.model_dump())


@pytest.mark.parametrize("render", [training_arguments.render, trl.render])
def test_programs_without_selective_checkpointing_say_so(render: Any) -> None:
    rendered = render(source_of(FSDP2, "attention"))
    assert any(line.startswith("activation_checkpointing: selective was measured") for line in rendered.lossy)
    assert any(line.startswith("selective_keeps: attention was measured") for line in rendered.lossy), rendered.lossy
    TrialConfig.model_validate(rendered.lossy_config.model_dump())


@pytest.mark.parametrize("keeps", ["products", "second_products"])
def test_products_of_experts_with_biases_are_not_in_the_script(keeps: SelectiveKeeps) -> None:
    """transformers adds the biases to their results in place, so that the script would fail."""
    source = source_of(FSDP2, keeps)
    spec = source.study.spec
    model = ModelSpec(name="gpt-oss", config=spec.model.config | {"model_type": "gpt_oss"})
    other = replace(source, study=source.study.model_copy(update={"spec": spec.model_copy(update={"model": model})}))
    assert '"_grouped_mm",' in snippet.source(source) and '"_grouped_mm",' not in snippet.source(other)
    assert '"baddbmm",' in snippet.source(other)
