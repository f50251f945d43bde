"""A loss in chunks: less memory where logits are most of it, one more product with the head."""

import numpy as np
import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Strategy, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction.candidates import Dtypes, Implementation, from_rows
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.tuner.prediction.footprint.activations import logits_bytes
from shardtune.tuner.prediction.shapes.config_shape import from_config
from tests.support.values.tuner_inputs import gpus

SHAPE = from_config(preset("llama-3.1-8b").config)
WORKLOAD = Workload(sequence_length=16_384, global_batch=16)
CLUSTER = gpus().model_copy(update={"gpu": "NVIDIA H100 80GB HBM3"})
OWN = Implementation(fused_optimizer=True, keeps_logits=False)


@pytest.mark.parametrize(
    "strategy",
    [DdpConfig(), ZeroConfig(stage=1), ZeroConfig(stage=3), Fsdp1Config(dp_shard=8), Fsdp2Config(dp_shard=8)],
    ids=lambda strategy: strategy.describe(),
)
def test_chunks_need_less_memory_and_more_time_the_smaller_they_are(strategy: Strategy) -> None:
    full = TrialConfig(strategy=strategy, activation_checkpointing="full")
    chunks = [full.model_copy(update={"loss": "chunked", "loss_chunk": chunk}) for chunk in (4096, 1024, 256)]
    evaluation = evaluate(SHAPE, from_configs([full, *chunks], 16_384, 8, 16), WORKLOAD, CLUSTER)
    assert evaluation.step is not None
    assert np.all(np.diff(evaluation.memory.allocated) <= 0)
    assert np.all(np.diff(evaluation.step.total) > 0)


def test_at_a_vocabulary_of_32_k_chunks_hold_at_most_half_of_what_all_logits_do() -> None:
    shape = from_config(preset("llama-2-7b").config)
    rows = from_rows([{"sequence": 16_384}, {"sequence": 16_384, "loss_chunk": 1024}])
    full, chunked = logits_bytes(shape, rows, Dtypes(), OWN)
    assert chunked <= full / 2


def test_ranks_that_split_the_vocabulary_sum_a_part_of_the_heads_gradient() -> None:
    rows = from_rows([{"sequence": 4096, "loss_chunk": 64, "tensor": tensor} for tensor in (1, 4)])
    whole, part = logits_bytes(SHAPE, rows, Dtypes(), OWN)
    assert part < whole / 2


def test_one_chunk_for_all_tokens_adds_nothing_up() -> None:
    rows = from_rows([{"sequence": 512, "loss_chunk": chunk} for chunk in (512, 4096)])
    assert rows.loss_chunks.tolist() == [1, 1]
    at_once, larger = logits_bytes(SHAPE, rows, Dtypes(), OWN)
    assert at_once == larger


@pytest.mark.parametrize("tensor", [1, 4])
def test_compiled_chunks_have_no_float32_copy_of_their_logits(tensor: int) -> None:
    shape = from_config(preset("llama-2-7b").config)
    chunk = {"sequence": 16_384.0, "loss_chunk": 8192.0, "tensor": float(tensor)}
    rows = from_rows([chunk, chunk | {"loss_compiled": 1.0}])
    eager, compiled = logits_bytes(shape, rows, Dtypes(), OWN)
    one_copy = 4.0 * 8192 * shape.vocab / tensor
    # Beside the logits the compiled chunk has the head's gradient, which the copy's place hides in part.
    assert 0.4 * one_copy < eager - compiled <= one_copy * OWN.fp32_logit_copies


def test_compiled_chunks_are_faster_than_chunks_and_slower_or_faster_than_all_logits() -> None:
    full = TrialConfig(strategy=DdpConfig())
    chunked = full.model_copy(update={"loss": "chunked"})
    configs = [full, chunked, chunked.model_copy(update={"loss_compile": True})]
    step = evaluate(SHAPE, from_configs(configs, 16_384, 8, 16), WORKLOAD, CLUSTER).step
    assert step is not None
    whole, eager, compiled = step.total
    assert compiled < eager and abs(compiled / whole - 1) < 0.1
