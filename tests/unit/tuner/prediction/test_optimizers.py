"""Predicted states and steps of optimizers other than AdamW."""

from typing import Any

import pytest

from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.optimizers import AdamW8bit, AdamWBf16, Muon
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.tuner.prediction import optimizers
from shardtune.tuner.prediction.candidates import DDP, FSDP2, Dtypes, Implementation, from_rows
from shardtune.tuner.prediction.footprint import peak_memory
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import CPU_NETWORK, CPU_RATES
from shardtune.tuner.prediction.shapes.config_shape import from_config
from shardtune.tuner.prediction.throughput import step_times
from shardtune.tuner.prediction.traced_shape import TracedShape, summary_of
from tests.support.values.tuner_inputs import shape

FP32 = Dtypes.of(PRECISIONS["fp32"])
MUON = Implementation(optimizer=Muon(), fused_optimizer=True)
ADAMW = Implementation(fused_optimizer=True)
LLAMA = from_config(preset("llama-2-7b").config)


def step(model: ModelShape, impl: Implementation, **row: Any) -> float:
    return float(step_times(model, from_rows([row]), FP32, impl, CPU_RATES, CPU_NETWORK).optimizer[0])


@pytest.mark.parametrize("name", ["llama-2-7b", "gpt2", "mixtral-8x7b"])
def test_matrices_and_the_rest_make_a_block(name: str) -> None:
    model = from_config(preset(name).config)
    small = model.block_parameters - model.expert_parameters - model.matrix_parameters // model.layers
    assert 0 < small <= 20 * model.hidden


def test_muon_halves_the_state_of_matrices_in_blocks() -> None:
    rows = from_rows([{"backend": DDP, "replicate": 8}, {"backend": FSDP2, "shard": 8}])
    whole, shard = peak_memory(LLAMA, rows, FP32, MUON).terms["optimizer"].tolist()
    rest = LLAMA.parameters - LLAMA.matrix_parameters
    assert whole == pytest.approx(4 * LLAMA.matrix_parameters + 8 * rest)
    assert shard == pytest.approx(whole / 8)


def test_8_bit_moments_take_a_quarter_of_float32_ones() -> None:
    rows = from_rows([{"backend": DDP, "replicate": 8}])
    plain, low = (
        float(peak_memory(LLAMA, rows, FP32, impl).terms["optimizer"][0])
        for impl in (ADAMW, Implementation(optimizer=AdamW8bit(), fused_optimizer=True))
    )
    assert low / plain == pytest.approx((1 + 4 / 256) / 4)


def test_stochastic_rounding_keeps_half_of_the_moments_and_copies_a_piece_alone() -> None:
    rows = from_rows([{"backend": DDP, "replicate": 8}, {"backend": FSDP2, "shard": 8}])
    impl = Implementation(optimizer=AdamWBf16(), fused_optimizer=True)
    table = peak_memory(LLAMA, rows, Dtypes.of(PRECISIONS["bf16-true"]), impl)
    assert table.terms["optimizer"].tolist() == [4 * LLAMA.parameters, pytest.approx(LLAMA.parameters / 2)]
    copies = optimizers.step_bytes(LLAMA, rows, FP32, impl, False), optimizers.step_bytes(LLAMA, rows, FP32, impl, True)
    assert [part.tolist() for part in copies] == [[20 * 2**22] * 2, [20 * 2**16] * 2]


def test_the_states_of_pipeline_stages_are_those_of_their_own_parameters() -> None:
    row = {"backend": FSDP2, "stages": 2, "accumulation": 4}
    term = peak_memory(LLAMA, from_rows([row]), FP32, MUON).terms["optimizer"]
    half, table = LLAMA.matrix_parameters / 2, LLAMA.embedding_parameters
    assert float(term[0]) == pytest.approx(4 * half + 8 * table, rel=1e-3)


def test_a_step_of_muon_takes_longer_and_shards_divide_it() -> None:
    adamw, muon = (step(LLAMA, impl, backend=DDP, replicate=4) for impl in (ADAMW, MUON))
    assert muon > 2 * adamw
    assert step(LLAMA, MUON, backend=FSDP2, shard=4) < muon


def test_counted_matrices_replace_the_formula() -> None:
    tiny = shape("llama-tiny")
    assert isinstance(tiny, TracedShape)
    blocks = tuple(block.model_copy(update={"matrix_parameters": 7}) for block in tiny.counted.blocks)
    counted = TracedShape(
        **{name: getattr(tiny, name) for name in ModelShape.__dataclass_fields__},
        counted=tiny.counted.model_copy(update={"blocks": blocks}),
    )
    assert counted.matrix_parameters == 7 * tiny.layers
    assert summary_of(counted).blocks[0].matrix_parameters == 7
