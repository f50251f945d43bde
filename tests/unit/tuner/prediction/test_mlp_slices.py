"""MLPs in slices: what they free, what they cost, and that whole MLPs are predicted as before."""

import numpy as np
import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate
from shardtune.tuner.prediction.shapes.config_shape import from_config
from tests.support.values.tuner_inputs import gpus

SHAPE = from_config(preset("llama-3.1-8b").config)
LENGTH = 65_536
CLUSTER = gpus().model_copy(update={"gpu": "NVIDIA H100 80GB HBM3"})
INNER = LENGTH * 4 * SHAPE.ffn * 2
"""Bytes between the linear layers of one MLP in bfloat16: gate, its activation, up and their product."""
WHOLE = TrialConfig(strategy=Fsdp2Config(dp_shard=8), loss="chunked")


def sliced(config: TrialConfig = WHOLE, count: int = 4, **changes: object) -> TrialConfig:
    return config.model_copy(update={"mlp_slices": count, **changes})


def evaluated(*configs: TrialConfig) -> Evaluation:
    workload = Workload(sequence_length=LENGTH, global_batch=8)
    return evaluate(SHAPE, from_configs(configs, LENGTH, 8, 8), workload, CLUSTER)


def seconds(*configs: TrialConfig) -> list[float]:
    step = evaluated(*configs).step
    assert step is not None
    return [float(value) for value in step.total]


def test_blocks_keep_their_mlps_input_alone() -> None:
    whole, parts = evaluated(WHOLE, sliced()).memory.terms["activations"]
    assert whole - parts == pytest.approx(SHAPE.layers * INNER, rel=0.05)


def test_under_full_checkpointing_a_slice_is_restored_instead_of_all_tokens() -> None:
    full = WHOLE.model_copy(update={"activation_checkpointing": "full"})
    memory = evaluated(full, sliced(full), sliced(full, 16)).memory
    whole, four, sixteen = memory.terms["recomputation"]
    # Of seven widths of the MLP (four restored, three gradients) a quarter is left.
    assert whole - four > 0.7 * INNER * 7 / 4 * 0.75 and sixteen <= four
    assert memory.terms["activations"].max() == pytest.approx(memory.terms["activations"].min())


def test_backward_repeats_the_mlp_once_unless_the_block_is_checkpointed_whole() -> None:
    whole, parts = seconds(WHOLE, sliced())
    assert 1.05 < parts / whole < 1.25
    full = WHOLE.model_copy(update={"activation_checkpointing": "full"})
    whole, parts = seconds(full, sliced(full))
    assert 1.0 < parts / whole < 1.02


def test_selective_checkpointing_keeps_no_product_of_a_sliced_mlp() -> None:
    selective = WHOLE.model_copy(update={"activation_checkpointing": "selective"})
    whole, parts = evaluated(selective, sliced(selective)).memory.terms["activations"]
    products = LENGTH * (2 * SHAPE.ffn + SHAPE.hidden) * 2
    assert whole - parts == pytest.approx(SHAPE.layers * products, rel=0.01)
    whole, parts = seconds(selective, sliced(selective))
    assert parts > whole


def test_zero_3_gathers_for_each_slice_what_it_does_not_keep() -> None:
    keeps = TrialConfig(strategy=ZeroConfig(stage=3), mlp_slices=16)
    frees = TrialConfig(strategy=ZeroConfig(stage=3, stage3_max_reuse_distance=0), mlp_slices=16)
    step = evaluated(keeps, frees, sliced(keeps, 1), sliced(frees, 1)).step
    assert step is not None
    kept, freed, whole, whole_freed = step.total
    assert freed - kept > 2 * (whole_freed - whole)


def test_more_slices_than_help_cost_time() -> None:
    four, many = seconds(sliced(), sliced(count=128))
    assert many > four


def test_whole_mlps_are_predicted_alike_beside_sliced_ones() -> None:
    config = TrialConfig(strategy=DdpConfig(), activation_checkpointing="selective")
    alone, beside = evaluated(config), evaluated(config, sliced(config))
    assert alone.step is not None and beside.step is not None
    assert np.array_equal(alone.memory.allocated, beside.memory.allocated[:1])
    assert np.array_equal(alone.step.total, beside.step.total[:1])
