"""Predictions for models of which an adapter alone is trained."""

from typing import Any

import numpy as np
import pytest

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.strategies.recipe_support import lora_support
from shardtune.api_schemas.training.adapters import LastLayers, Lora
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.tuner.prediction import prediction_request, prediction_table, traced_shape
from shardtune.tuner.prediction.adapters import magnitudes
from shardtune.tuner.prediction.backends import trained_fractions
from shardtune.tuner.prediction.candidates import Dtypes, Implementation
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.footprint import peak_memory
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.shapes.config_shape import from_config
from shardtune.tuner.prediction.throughput.adapter_traffic import adapter_traffic
from shardtune.tuner.prediction.traced_shape import summary_of, with_adapter
from shardtune.tuner.search import fastest
from tests.support.values.prediction_tables import predicted_table


def shape_of(name: str, adapter: Any) -> ModelShape:
    model = preset(name)
    return with_adapter(from_config(model.trained_config, name), model.model_type, adapter)


def table(**changes: Any) -> PredictionTable:
    return predicted_table(PredictionRequest(model="llama-3.1-8b", cluster="8xh100", **changes))


@pytest.mark.parametrize(
    ("name", "rank", "trained"),
    [("llama-3.1-8b", 16, 41_943_040), ("llama-2-7b", 8, 19_988_480), ("qwen3-8b", 16, 43_646_976)],
)
def test_trained_parameters_are_those_that_peft_prints(name: str, rank: int, trained: int) -> None:
    """`print_trainable_parameters` of PEFT 0.21 with `target_modules="all-linear"`."""
    shape = shape_of(name, Lora(rank=rank))
    assert shape.trained_parameters == trained
    assert shape.parameters == shape_of(name, None).parameters + trained


def test_two_targets_train_their_own_matrices_alone() -> None:
    shape = shape_of("llama-3.1-8b", Lora(rank=16, targets=("q_proj", "v_proj")))
    assert shape.trained_parameters == 32 * 16 * ((4096 + 4096) + (4096 + 1024))


def test_a_summary_counted_without_the_adapter_gets_its_parameters() -> None:
    model, lora = preset("llama-3.1-8b"), Lora()
    plain = from_config(model.trained_config)
    counted = summary_of(plain).model_copy(update={"forward_flops_per_token": 1.0})
    shape = traced_shape.of_study(model, counted, lora)
    assert shape is not None
    assert (shape.parameters, shape.trained_parameters) == (plain.parameters + 41_943_040, 41_943_040)


def test_names_of_an_unknown_family_are_the_workers_to_check() -> None:
    shape, lora = from_config(preset("llama-3.1-8b").trained_config), Lora(targets=("qkv_proj", "o_proj"))
    assert with_adapter(shape, "phi3", lora).trained_parameters > 0
    with pytest.raises(ValueError, match="did you mean"):
        with_adapter(shape, "llama", lora)


def test_a_summary_counted_with_the_adapter_is_believed() -> None:
    model, lora = preset("llama-3.1-8b"), Lora()
    adapted = shape_of("llama-3.1-8b", lora)
    update = {"forward_flops_per_token": 1.0, "trainable_parameters": adapted.trained_parameters}
    shape = traced_shape.of_study(model, summary_of(adapted).model_copy(update=update), lora)
    assert shape is not None
    assert (shape.parameters, shape.trained_parameters) == (adapted.parameters, adapted.trained_parameters)


@pytest.mark.parametrize("kind", ["ddp", "zero", "fsdp2"])
def test_frozen_weights_have_neither_gradients_nor_optimizer_state(kind: str) -> None:
    """Of 8 billion parameters 42 million are trained, so what remains is the weights in bf16 and activations."""
    for row in table(adapter="lora").predictions:
        if row.config.strategy.kind == kind:
            terms = {term.name: term.gib for term in row.memory.terms}
            assert terms["optimizer"] + terms["masters"] <= 12 * 41_943_040 / GIB * 1.01
            assert terms["gradients"] <= 8 * 41_943_040 / GIB * 1.01
    sharded = next(row for row in table(adapter="lora").predictions if row.config.strategy.kind == "fsdp2")
    assert {t.name: t.gib for t in sharded.memory.terms}["parameters"] == pytest.approx(2 * 8.03e9 / 8 / GIB, rel=0.05)


def test_adapters_are_predicted_faster_and_with_a_lower_count_of_flops() -> None:
    whole, lora, last = (table(adapter=value).predictions for value in (None, "lora", {"layers": 2}))
    for plain, adapted, few in zip(whole, lora, last, strict=True):
        assert plain.speed and adapted.speed and few.speed
        assert few.speed.tokens_per_s_per_gpu > adapted.speed.tokens_per_s_per_gpu > plain.speed.tokens_per_s_per_gpu
        assert few.memory.total_gib < adapted.memory.total_gib < plain.memory.total_gib


def test_model_flops_leave_out_gradients_of_frozen_weights() -> None:
    whole, lora, last = (shape_of("llama-3.1-8b", value) for value in (None, Lora(), LastLayers(layers=2)))
    flops = [shape.model_flops_per_token(4096) for shape in (whole, lora, last)]
    # Two passes of three, and three of attention, which has no weights; of the last blocks alone little more than one.
    assert flops[1] / flops[0] == pytest.approx(0.71, rel=0.02)
    assert flops[2] / flops[0] == pytest.approx(1 / 3, rel=0.3)


def test_all_layers_of_the_last_train_as_many_blocks_as_there_are() -> None:
    shape = shape_of("llama-tiny", LastLayers(layers=1))
    assert shape.trained_parameters == shape.block_parameters
    with pytest.raises(ValueError, match=r"adapter.layers \(99\) is more than"):
        shape_of("llama-tiny", LastLayers(layers=99))


def test_the_search_space_of_predictions_has_no_mesh_that_splits_adapters() -> None:
    request = PredictionRequest(
        model="llama-3.1-8b", cluster="8xh100", adapter="lora", space={"knobs": {"tensor_parallel": [1, 2]}}, top=5
    )
    rows = fastest.answer_request(request).fastest
    assert rows and all(row.config.strategy.model_parallel == 1 for row in rows)


def test_a_model_without_an_adapter_is_predicted_as_before() -> None:
    assert np.isclose(shape_of("llama-tiny", None).trained_parameters, shape_of("llama-tiny", None).parameters)


def test_lora_moves_outputs_more_often_than_a_frozen_model_does() -> None:
    """PEFT scales each adapted layer's output and adds it to the layer's own; two targets do so for two layers alone."""
    size, compiled = 2, np.array([0.0, 1.0])
    everywhere = adapter_traffic(shape_of("llama-3.1-8b", Lora()), compiled, size)
    two = adapter_traffic(shape_of("llama-3.1-8b", Lora(targets=("q_proj", "v_proj"))), compiled, size)
    inputs, outputs = 6 * 4096 + 14_336, 3 * 4096 + 2 * 1024 + 2 * 14_336
    assert everywhere.forward.tolist() == [size * (inputs + 6 * outputs), size * (inputs + 4 * outputs)]
    assert everywhere.backward.tolist() == [size * (5 * inputs + 4 * outputs)] * 2
    assert (two.forward < 0.2 * everywhere.forward).all()
    assert not adapter_traffic(shape_of("llama-3.1-8b", None), compiled, size).forward.any()


QLORA = Lora(quantization="nf4")


@pytest.mark.parametrize(("name", "linear"), [("llama-3.1-8b", 6_979_321_856), ("qwen3-8b", 6_945_767_424)])
def test_every_linear_layer_of_the_blocks_is_kept_in_4_bits(name: str, linear: int) -> None:
    """With two targets, too: bitsandbytes packs all but embeddings, norms and output head."""
    for lora in (QLORA, Lora(quantization="nf4", targets=("q_proj", "v_proj"))):
        shape = shape_of(name, lora)
        assert shape.layers * shape.packed_parameters == linear


def _weight_bytes(shape: ModelShape) -> float:
    weights = trained_fractions.compute_bytes(shape, Dtypes.of(PRECISIONS["bf16-mixed"]))
    return shape.parameters * weights + trained_fractions.scale_bytes(shape)


def test_4_bit_weights_take_half_a_byte_and_their_scales() -> None:
    """QLoRA (arXiv:2305.14314), section 3: 0.5 bits a weight for scales of 64, and 0.127 with double quantisation."""
    shape, twice = shape_of("llama-3.1-8b", QLORA), Lora(quantization="nf4", double_quantization=True)
    packed = shape.layers * shape.packed_parameters
    others = 2 * (shape.parameters - packed)
    assert _weight_bytes(shape) == pytest.approx(others + packed * (4 + 0.5) / 8)
    assert _weight_bytes(shape_of("llama-3.1-8b", twice)) == pytest.approx(others + packed * (4 + 0.127) / 8, rel=1e-4)


def _parameters(adapter: Any, kind: str) -> float:
    rows = table(adapter=adapter).predictions
    row = next(row for row in rows if row.config.strategy.kind == kind)
    return next(term.gib for term in row.memory.terms if term.name == "parameters")


def test_scales_are_not_sharded() -> None:
    """FSDP2 divides the packed weights among 8 ranks; each rank keeps all scales."""
    shape = shape_of("llama-3.1-8b", QLORA)
    packed = shape.layers * shape.packed_parameters
    trained = shape.trained_parameters
    sharded = (packed / 2 + 2 * (shape.parameters - packed - trained) + 4 * trained) / 8
    assert _parameters(QLORA, "fsdp2") * GIB == pytest.approx(sharded + packed / 16)
    assert _parameters(QLORA, "ddp") < 0.45 * _parameters("lora", "ddp")


def test_8_billion_weights_fit_a_gpu_of_24_gb_in_4_bits_alone() -> None:
    """Full checkpointing, a micro batch of one sample of 2048 tokens; 16-bit weights alone take 15 GiB."""
    totals = []
    for adapter in ("lora", "qlora"):
        request = PredictionRequest(
            model="llama-3.1-8b",
            cluster="1xrtx-4090",
            adapter=adapter,
            sequence_length=2048,
            checkpointing="full",
        )
        totals.append([row.memory.total_gib for row in predicted_table(request).predictions])
    by_16_bits, by_4_bits = totals
    # ZeRO-2's buckets and FSDP2's gathered units are there on one GPU, too.
    assert max(by_4_bits) < 16 < 20 < min(by_16_bits)


def test_4_bit_weights_are_slower_to_train_beside_and_the_range_is_wider() -> None:
    """Under DDP; sharded weights are gathered in a quarter of the bytes."""
    plain, packed = (
        table(adapter=value, sequence_length=512, space={"backends": ["ddp"]}).predictions
        for value in ("lora", "qlora")
    )
    for before, after in zip(plain, packed, strict=True):
        assert before.speed and after.speed and after.config == before.config
        assert after.speed.tokens_per_s_per_gpu < before.speed.tokens_per_s_per_gpu
        ranges = [
            row.speed.high_tokens_per_s_per_gpu / row.speed.low_tokens_per_s_per_gpu
            for row in (before, after)
            if row.speed
        ]
        assert ranges[1] > 1.3 * ranges[0]


def test_a_prediction_of_4_bit_weights_says_what_it_knows() -> None:
    notes = table(adapter="qlora").notes
    assert any("adapter.quantization (nf4): the time to unpack weights" in note for note in notes)
    assert not any("quantization" in note for note in table(adapter="lora").notes)
    with pytest.raises(ValueError, match=r"precision \('bf16-autocast'\) with adapter.quantization"):
        table(adapter="qlora", precision="bf16-autocast")
    with pytest.raises(ValueError, match="experts are stacked"):
        predicted_table(PredictionRequest(model="mixtral-8x7b", cluster="8xh100", adapter="qlora"))


def test_the_table_beside_4_bit_weights_has_only_strategies_that_train() -> None:
    kinds = {
        (row.config.strategy.kind, getattr(row.config.strategy, "stage", None))
        for row in table(adapter="qlora").predictions
    }
    assert kinds == {("ddp", None), ("zero", 1), ("zero", 2), ("fsdp2", None)}
    request = PredictionRequest(model="llama-3.1-8b", cluster="8xh100", adapter="qlora", top=20)
    rows = fastest.answer_request(request).fastest
    assert rows and all(lora_support.can_train(row.config, QLORA) for row in rows)


def test_a_compiled_table_beside_4_bit_weights_predicts_fsdp2_as_it_trains() -> None:
    request = PredictionRequest(model="llama-3.1-8b", cluster="8xh100", adapter="qlora")
    compiled = prediction_table.predict_all(prediction_request.resolve(request, None), compiled=True)
    assert {row.config.backend for row in compiled.predictions if not row.config.compile} == {"fsdp2"}
    assert any("fsdp2 is not compiled" in note for note in compiled.notes)
    assert not any("not compiled" in note for note in table(adapter="qlora").notes)


def test_counted_weights_are_packed_as_those_of_the_formula() -> None:
    model = preset("llama-3.1-8b")
    counted = summary_of(from_config(model.trained_config)).model_copy(update={"forward_flops_per_token": 1.0})
    shape = traced_shape.of_study(model, counted, QLORA)
    assert shape is not None and shape.packed_parameters == shape_of("llama-3.1-8b", QLORA).packed_parameters


def peak(mode: str, lora: Lora) -> float:
    """Bytes at the peak of short steps, whose activations are small beside weights."""
    config = TrialConfig.model_validate({"strategy": {"kind": "ddp"}, "activation_checkpointing": mode})
    candidate, dtypes = from_configs([config], 64, 1, 1), Dtypes.of(PRECISIONS["bf16-mixed"])
    shape = shape_of("llama-3.1-8b", lora)
    return float(peak_memory(shape, candidate, dtypes, Implementation(), "cuda").allocated[0])


def test_selective_checkpointing_keeps_the_products_of_weight_lengths() -> None:
    """Measured at width 512 on 2 blocks (CPU, torch 2.13, PEFT 0.21): 62.1 MiB, where LoRA needs less than 49.6."""
    full, selective = (peak(mode, Lora(dora=True)) - peak(mode, Lora()) for mode in ("full", "selective"))
    assert selective - full == pytest.approx(2 * 6_979_321_856, rel=0.05)


def test_autocast_takes_weight_lengths_in_float32() -> None:
    """Three products of the largest weight in four bytes; at width 512 55.2 MiB were measured, and 54.5 are predicted."""
    largest = 14_336 * 4096
    shape, none = shape_of("llama-3.1-8b", Lora(dora=True)), np.array([False])
    low, autocast = (magnitudes.largest_temporary(shape.adapter, 2, size, none)[0] for size in (2, 4))
    assert autocast - low == 3 * 2 * largest
    assert magnitudes.largest_temporary(shape.adapter, 2, 2, ~none)[0] == low - 2 * largest
    assert magnitudes.largest_temporary(None, 2, 2, none)[0] == magnitudes.kept_products(None, 2) == 0.0
