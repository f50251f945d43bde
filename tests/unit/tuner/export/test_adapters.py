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


def test_dora_is_named_in_each_file() -> None:
    dora = source(STRATEGIES["fsdp2"], {"rank": 8, "dora": True})
    text = snippet.source(dora)
    compile(text, "train_snippet.py", "exec")
    assert "use_rslora=False, use_dora=True)" in text
    assert text.index("model.init_weights()") < text.index("layer.lora_magnitude_vector")
    assert yaml.safe_load(trl.render(dora).files[trl.CONFIG])["use_dora"] is True
    plain = snippet.source(source(STRATEGIES["fsdp2"]))
    assert "use_dora" not in plain and "magnitude" not in plain


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


QLORA = {"kind": "lora", "rank": 8, "alpha": 16, "quantization": "nf4"}
TWICE = QLORA | {"double_quantization": True}


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
@pytest.mark.parametrize("name", ["ddp", "zero2", "fsdp2"])
def test_the_script_packs_weights_layer_by_layer_before_it_adds_the_adapter(name: str, precision: str) -> None:
    """On the meta device first, so that no rank holds the whole model in 16 bits."""
    text = snippet.source(source(STRATEGIES[name], TWICE, study_of(precision=precision)))
    compile(text, "train_snippet.py", "exec")
    assert 'with torch.device("meta"):' in text and "import bitsandbytes" in text
    assert text.index("four_bit(layer)") < text.index("inject_adapter_in_model(adapter, model, low_cpu_mem_usage=True)")
    assert "compress_statistics=True" in text and 'quant_type="nf4"' in text
    assert ('not hasattr(parameter, "bnb_quantized")' in text) == (precision == "bf16-mixed")
    assert (
        "place(model, model, device)" in text
        and "model.to(device)" not in text
        and "to_empty(device=device)" not in text
    )
    storage = {"fp32": "torch.float32", "bf16-mixed": "torch.bfloat16"}[precision] if name == "fsdp2" else "torch.uint8"
    assert f"quant_storage={storage}" in text


def test_the_script_for_fsdp2_packs_each_unit_before_it_shards_it() -> None:
    text = snippet.source(source(STRATEGIES["fsdp2"], QLORA))
    assert text.index("place(model, unit, device)") < text.index("fully_shard(unit, **options)")
    assert text.index("place(model, model, device)") < text.index("fully_shard(model, **options)")
    several = snippet.source(source(Fsdp2Config(dp_shard=2, blocks_per_unit=2), QLORA))
    assert "for block in unit:\n                place(model, block, device)" in several


def test_trl_gets_the_arguments_of_4_bit_weights() -> None:
    rendered = trl.render(source(STRATEGIES["fsdp2"], TWICE, study_of(precision="bf16-mixed")))
    values = yaml.safe_load(rendered.files[trl.CONFIG])
    expected = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": True}
    expected |= {"bnb_4bit_quant_storage": "bfloat16", "dtype": "bfloat16", "use_peft": True}
    assert {name: values[name] for name in expected} == expected
    assert "quantization_config=get_quantization_config(model)" in rendered.files[trl.SCRIPT]
    says = (
        "TRL 1.16 updates them in bfloat16 without float32 masters, which is another training; measure with bf16-true"
    )
    assert any(says in line for line in rendered.lossy)
    low = trl.render(source(STRATEGIES["fsdp2"], TWICE, study_of(precision="bf16-true")))
    assert not any("masters" in line for line in low.lossy)
    plain = yaml.safe_load(trl.render(source(STRATEGIES["fsdp2"])).files[trl.CONFIG])
    assert not [name for name in plain if "bit" in name or "bnb" in name]


def test_programs_that_take_a_model_are_told_to_load_it_in_4_bits() -> None:
    four_bit = source(STRATEGIES["ddp"], TWICE, study_of(precision="bf16-mixed"))
    texts = ["\n".join(renderer.render(four_bit).lossy) for renderer in (training_arguments, lightning)]
    for text in (*texts, accelerate.document(four_bit)):
        assert 'load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True' in text
        assert "bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=torch.uint8" in text


def test_torchtitan_says_that_4_bit_weights_are_lost() -> None:
    rendered = torchtitan.render(source(STRATEGIES["fsdp2"], QLORA))
    assert any("QLoRA nf4 r=8 was measured" in line and "all weights" in line for line in rendered.lossy)
