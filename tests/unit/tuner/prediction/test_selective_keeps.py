"""Results that selective checkpointing keeps: what blocks hold of them, and what backward repeats."""

from dataclasses import replace

import numpy as np
import pytest

from shardtune.api_schemas.strategies import Fsdp2Config, SelectiveKeeps, TrialConfig
from shardtune.api_schemas.training.adapters import Lora
from shardtune.api_schemas.training.models import ModelSpec, preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction.adapters.layers import AdaptedLayers
from shardtune.tuner.prediction.candidates import SECOND_PRODUCTS, SELECTIVE, Dtypes, Implementation, from_rows
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate
from shardtune.tuner.prediction.footprint import kept_products
from shardtune.tuner.prediction.footprint.activations import block_bytes
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.shapes.config_shape import from_config
from shardtune.tuner.prediction.throughput.mlp_slices import added_work
from shardtune.tuner.prediction.traced_shape import of_study, summary_of
from tests.support.values.tuner_inputs import gpus

SHAPE = from_config(preset("llama-3.1-8b").config)
LENGTH = 8192
CLUSTER = gpus().model_copy(update={"gpu": "NVIDIA H100 80GB HBM3"})
PLAIN = TrialConfig(strategy=Fsdp2Config(dp_shard=8), loss="chunked", activation_checkpointing="selective")
FULL = PLAIN.model_copy(update={"activation_checkpointing": "full"})
NONE = PLAIN.model_copy(update={"activation_checkpointing": "none"})
KEPT: tuple[SelectiveKeeps, ...] = ("attention", "second_products", "products")


def keeping(keeps: SelectiveKeeps, **changes: object) -> TrialConfig:
    return PLAIN.model_copy(update={"selective_keeps": keeps, **changes})


def evaluated(*configs: TrialConfig, shape: ModelShape = SHAPE) -> Evaluation:
    workload = Workload(sequence_length=LENGTH, global_batch=8)
    return evaluate(shape, from_configs(configs, LENGTH, 8, 8), workload, CLUSTER)


def kept_bytes(*configs: TrialConfig, shape: ModelShape = SHAPE, program: Implementation | None = None) -> list[float]:
    """Bytes per token that a block keeps beyond its input."""
    rows = from_configs([FULL, *configs], LENGTH, 8, 8)
    inputs, *kept = block_bytes(shape, rows, Dtypes(), program or Implementation()).checkpointed
    return [(float(each) - float(inputs)) / LENGTH for each in kept]


def test_each_choice_keeps_the_results_that_it_names() -> None:
    """q, k, v, attention and its log-sum-exp, o, gate, up and down, in bf16."""
    attention, second, products = kept_bytes(*map(keeping, KEPT))
    of_attention = 2 * 4096 + 4 * 32
    assert attention == pytest.approx(of_attention)
    assert second == pytest.approx(of_attention + 2 * (4096 + 1024 + 14336 + 4096))
    assert products == pytest.approx(of_attention + 2 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096))


def test_the_peak_rises_and_the_time_falls_with_what_is_kept() -> None:
    evaluation = evaluated(FULL, *map(keeping, KEPT), NONE)
    assert evaluation.step is not None
    assert np.all(np.diff(evaluation.memory.allocated) > 0) and np.all(np.diff(evaluation.step.total) < 0)


def test_backward_repeats_every_second_product() -> None:
    counted = from_rows([{"checkpointing": SELECTIVE, "selective_keeps": choice} for choice in (0, SECOND_PRODUCTS, 2)])
    everything = 2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336
    unkept = 4096 * (1024 + 4096 + 14336)
    assert kept_products.repeated(SHAPE, counted) == pytest.approx([0.0, unkept / everything, 1.0])


def test_slices_of_an_mlp_keep_none_of_their_products() -> None:
    attention, second, products = kept_bytes(*(keeping(keeps, mlp_slices=4) for keeps in KEPT))
    assert attention == pytest.approx(2 * 4096 + 4 * 32)
    assert second - attention == pytest.approx(2 * (4096 + 1024))
    assert products - attention == pytest.approx(2 * (4096 + 2 * 1024 + 4096))


def test_slices_repeat_no_products_that_are_repeated_in_any_case() -> None:
    rows = from_rows([{"checkpointing": SELECTIVE, "selective_keeps": choice, "mlp_slices": 4} for choice in range(3)])
    products, second, attention = np.broadcast_to(
        added_work(SHAPE, rows, Dtypes(), Implementation(), np.ones(3)).flops, (3,)
    )
    assert products == second > attention == 0


def test_products_of_adapters_count() -> None:
    """q, its two matrices, k, v, its two matrices, o, ...: every second one is kept."""
    shape = from_config(preset("llama-3.1-8b").config)
    lora = Lora(rank=16, alpha=32, targets=("q_proj", "v_proj"))
    adapted = replace(shape, adapter=AdaptedLayers.of(lora, shape.part_widths, "llama"))
    row = from_rows([{"checkpointing": SELECTIVE, "selective_keeps": SECOND_PRODUCTS}])
    width = kept_products.kept_width(adapted, row, row.tokens * 0.0)
    # q, A of q, B of q, k, v, A of v, B of v, o, gate, up, down
    assert float(width[0]) == 4096 + 4096 + 1024 + 1024 + 14336 + 4096


def test_products_of_experts_count() -> None:
    """q, k, v, o, the router, and the two products of experts."""
    mixtral = from_config(preset("mixtral-8x7b").config)
    attention, second, products = kept_bytes(*map(keeping, KEPT), shape=mixtral)
    assert second - attention == pytest.approx(2 * (4096 + 1024 + 8 + 2 * 4096))
    assert products - attention == pytest.approx(2 * (4096 + 2 * 1024 + 4096 + 2 * (2 * 14336 + 4096)))


def test_every_second_product_of_eager_attention_leaves_the_scores_out() -> None:
    eager = Implementation(attention="eager")
    (second,) = kept_bytes(keeping("second_products"), program=eager)
    assert second == pytest.approx(2 * (4096 + 4096 + 1024 + 14336 + 4096))


def test_sums_of_split_blocks_are_kept_for_all_positions() -> None:
    """Of the two products whose results are sums over ranks, every second product is one."""
    row = {"sequence": LENGTH, "checkpointing": SELECTIVE, "selective_keeps": SECOND_PRODUCTS}
    whole, split = (
        float(block_bytes(SHAPE, from_rows([row | {"tensor": size}]), Dtypes(), Implementation()).checkpointed[0])
        for size in (1, 2)
    )
    assert split - whole / 2 == pytest.approx(LENGTH / 2 * 2 * 4096)


def test_blocks_with_the_default_are_predicted_alike_beside_others() -> None:
    alone, beside = evaluated(PLAIN), evaluated(PLAIN, keeping("attention"))
    assert alone.step is not None and beside.step is not None
    assert np.array_equal(alone.memory.allocated, beside.memory.allocated[:1])
    assert np.array_equal(alone.step.total, beside.step.total[:1])


def test_a_model_that_was_built_without_fused_attention_keeps_its_scores() -> None:
    """On two CPU ranks an MPT of 4 blocks had a peak of 41.0 MiB; 21.7 were predicted as for a fused attention."""
    model = ModelSpec.model_validate("llama-3.1-8b")
    summary = summary_of(SHAPE).model_copy(update={"forward_flops_per_token": 1.6e10})
    fused, eager = (
        of_study(model, summary.model_copy(update={"attention": attention})) for attention in (None, "eager")
    )
    assert fused is not None and eager is not None
    stated = Workload(sequence_length=LENGTH, global_batch=8, attention="eager")
    expected = evaluate(fused, from_configs([NONE], LENGTH, 8, 8), stated, CLUSTER)
    built, usual = evaluated(NONE, shape=eager), evaluated(NONE, shape=fused)
    assert np.array_equal(built.memory.allocated, expected.memory.allocated)
    assert np.all(built.memory.allocated > 1.5 * usual.memory.allocated)
    assert built.step is not None and usual.step is not None and np.all(built.step.total > usual.step.total)
