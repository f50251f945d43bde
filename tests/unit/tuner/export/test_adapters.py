"""What exported files say about an adapter."""

from typing import Any

import pytest
import yaml

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.tuner.export import accelerate, lightning, snippet, torchtitan
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.trainer import training_arguments, trl
from tests.support.values.synthetic_studies import contender_of, study_of, with_adapter

STRATEGIES = {
    "ddp": DdpConfig(),
    "zero2": ZeroConfig(stage=2),
    "zero3": ZeroConfig(stage=3),
    "fsdp1": Fsdp1Config(dp_shard=2),
    "fsdp2": Fsdp2Config(dp_shard=2),
}


def source(strategy: Any, adapter: Any = "lora", study: Study | None = None) -> ExportSource:
    adapted = with_adapter(study or study_of(), adapter)
    return ExportSource.of(adapted, contender_of(TrialConfig(strategy=strategy, micro_batch=2)))


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_script_adds_the_adapter_before_it_wraps_the_model(name: str) -> None:
    text = snippet.source(source(STRATEGIES[name], {"rank": 8, "alpha": 16, "targets": ["q_proj"]}))
    compile(text, "train_snippet.py", "exec")
    assert 'LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj"], lora_dropout=0.0, use_rslora=False)' in text
    assert text.index("inject_adapter_in_model(adapter, model") < text.index("class Trainer")
    assert "from peft import LoraConfig, inject_adapter_in_model" in text


def test_the_script_for_fsdp1_wraps_each_matrix_of_an_adapter() -> None:
    text = snippet.source(source(STRATEGIES["fsdp1"]))
    assert text.index("setattr(parent, key, FullyShardedDataParallel(") < text.index(
        "blocks[i] = FullyShardedDataParallel"
    )


def test_the_script_for_fsdp1_casts_the_inputs_of_matrices_where_weights_are_cast() -> None:
    """PEFT casts them to the masters' dtype, and the gathered matrix has another."""
    text = snippet.source(source(STRATEGIES["fsdp1"], study=study_of(precision="bf16-mixed")))
    assert "cast_forward_inputs=True" in text and "import dataclasses" in text and "(path), **matrix_options)" in text
    plain = snippet.source(source(STRATEGIES["fsdp1"], study=study_of(precision="fp32")))
    assert "cast_forward_inputs" not in plain and "(path), **options)" in plain


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_script_of_last_layers_freezes_all_others(name: str) -> None:
    text = snippet.source(source(STRATEGIES[name], {"layers": 1}))
    compile(text, "train_snippet.py", "exec")
    assert "for block in model.get_submodule(BLOCKS)[-1:]:" in text and "BLOCKS = " in text and "peft" not in text


def test_experts_are_left_out_as_in_the_trial() -> None:
    """PEFT's `all-linear` would adapt them, too."""
    text = snippet.source(source(DdpConfig(), study=study_of(model="mixtral-tiny")))
    assert 'target_modules=["k_proj", "o_proj", "q_proj", "v_proj"]' in text


def test_trl_gets_the_arguments_of_its_own_adapter() -> None:
    rendered = trl.render(source(STRATEGIES["fsdp2"], {"rank": 8, "alpha": 16, "rslora": True}))
    values = yaml.safe_load(rendered.files[trl.CONFIG])
    expected = {"use_peft": True, "lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "use_rslora": True}
    assert {name: values[name] for name in expected} == expected
    assert values["lora_target_modules"] == "all-linear"
    assert not any(line.startswith("adapter") for line in rendered.lossy)


def test_trl_says_that_last_layers_are_lost() -> None:
    rendered = trl.render(source(STRATEGIES["fsdp2"], {"layers": 1}))
    assert "use_peft" not in yaml.safe_load(rendered.files[trl.CONFIG])
    assert any(line.startswith("adapter: the last layer alone") for line in rendered.lossy)


def test_programs_that_are_handed_a_model_say_which_adapter_it_needs() -> None:
    for renderer in (training_arguments, lightning):
        assert any(
            "get_peft_model(model, LoraConfig(r=16" in line for line in renderer.render(source(DdpConfig())).lossy
        )
    assert "get_peft_model(model, LoraConfig(r=16" in accelerate.document(source(DdpConfig()))
    assert "fsdp_auto_wrap_policy" in accelerate.document(source(Fsdp1Config(dp_shard=2)))


def test_torchtitan_says_that_it_trains_all_weights() -> None:
    lossy = torchtitan.render(source(STRATEGIES["fsdp2"])).lossy
    assert any(line.startswith("adapter: LoRA r=16 was measured; this file has torchtitan train all") for line in lossy)
