"""Activation bytes per attention kernel, checkpointing, and mixture of experts."""

import numpy as np
import pytest

from shardtune.api_schemas.training.models import preset
from shardtune.tuner.prediction.candidates import FULL, NONE, SELECTIVE, Dtypes, Implementation, from_rows
from shardtune.tuner.prediction.footprint.activations import block_bytes, logits_bytes
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.shapes.config_shape import from_config

LLAMA = from_config(preset("llama-2-7b").config)
GPT = ModelShape(name="gpt", layers=1, hidden=2048, heads=16, kv_heads=16, head_dim=128, ffn=8192, vocab=50257,
                 mlp="gelu", norm="layer", biases=True)  # fmt: skip
SEQUENCE = 2048


def _stored(shape: ModelShape, impl: Implementation, checkpointing: int = NONE, compiled: int = 0) -> float:
    row = {"sequence": SEQUENCE, "checkpointing": checkpointing, "compiled": compiled}
    return float(block_bytes(shape, from_rows([row]), Dtypes(), impl).checkpointed[0])


def test_eager_gpt_block_is_close_to_the_published_formula() -> None:
    """Korthikanti et al., equation 1: s·b·h·(34 + 5·a·s/h) bytes with fp16 and dropout."""
    published = SEQUENCE * GPT.hidden * (34 + 5 * GPT.heads * SEQUENCE / GPT.hidden)
    assert _stored(GPT, Implementation(attention="eager", dropout=0.1)) == pytest.approx(published, rel=0.05)


def test_flash_attention_saves_no_scores() -> None:
    flash, eager = (_stored(LLAMA, Implementation(attention=kernel)) for kernel in ("flash", "eager"))
    assert eager - flash == pytest.approx(6 * LLAMA.heads * SEQUENCE**2 - 4 * LLAMA.heads * SEQUENCE, rel=1e-6)


def test_llama_block_counted_tensor_by_tensor() -> None:
    """Two norms (fp32 copy, normalised, linear input), q, k, v, output, log-sum-exp, and four tensors of the MLP's width."""
    per_token = 2 * (4 + 2 + 2) * 4096 + 4 * 2 * 4096 + 4 * 32 + 4 * 2 * 11008
    assert _stored(LLAMA, Implementation()) == pytest.approx(per_token * SEQUENCE)


def test_full_checkpointing_keeps_the_input_only() -> None:
    assert _stored(LLAMA, Implementation(), FULL) == 2 * SEQUENCE * 4096


def test_selective_checkpointing_lies_between() -> None:
    none, selective, full = (_stored(LLAMA, Implementation(), mode) for mode in (NONE, SELECTIVE, FULL))
    assert full < selective < none
    every_second = _stored(LLAMA, Implementation(selective="second_matmuls"), SELECTIVE)
    # Measured by torchtitan PR 165: (49.54 - 22.73) GiB over 32 blocks of 16,384 tokens.
    assert (every_second - full) * 8 * 32 / 2**30 == pytest.approx(49.54 - 22.73, rel=0.02)


def test_selective_checkpointing_of_split_blocks_keeps_sums_for_all_positions() -> None:
    """The second products of attention and MLP give each rank of a group its part of the sum, before it is scattered."""
    row = {"sequence": SEQUENCE, "checkpointing": SELECTIVE}
    full, split = (
        float(block_bytes(LLAMA, from_rows([row | {"tensor": size}]), Dtypes(), Implementation()).checkpointed[0])
        for size in (1, 2)
    )
    assert split - full / 2 == pytest.approx(SEQUENCE / 2 * 2 * 2 * 4096)


def test_compilation_never_saves_more() -> None:
    assert _stored(LLAMA, Implementation(), compiled=1) < _stored(LLAMA, Implementation())


def test_experts_store_a_copy_per_chosen_expert() -> None:
    mixtral = from_config(preset("mixtral-8x7b").config)
    dense = ModelShape(**{**vars(mixtral), "experts": 1, "experts_per_token": 1})
    extra = (_stored(mixtral, Implementation()) - _stored(dense, Implementation())) / SEQUENCE
    assert extra == pytest.approx(4 * 2 * 14336 + 2 * 2 * 2 * 4096 + 8 * 8)


def test_large_vocabularies_dominate_the_loss() -> None:
    qwen = from_config(preset("qwen3-8b").config)
    candidate = from_rows([{"sequence": 32768}])
    logits = float(logits_bytes(qwen, candidate, Dtypes(), Implementation())[0])
    assert logits / 2**30 > 60
    assert float(logits_bytes(qwen, candidate, Dtypes(), Implementation(loss_chunks=8))[0]) < logits / 3


def test_bytes_are_linear_in_the_micro_batch() -> None:
    rows = from_rows([{"sequence": SEQUENCE, "micro_batch": m} for m in (1, 2, 8)])
    stored = block_bytes(LLAMA, rows, Dtypes(), Implementation()).checkpointed
    assert np.allclose(stored, stored[0] * np.array([1, 2, 8]))
