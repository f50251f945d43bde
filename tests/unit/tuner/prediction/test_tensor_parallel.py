"""Effects of tensor parallelism on predicted memory and time."""

import numpy as np
import pytest

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.tuner.prediction.model_shape import from_config
from shardtune.tuner.prediction.predict import predict
from tests.support.values.tuner_inputs import gpus

SHAPE = from_config(preset("llama-3.1-8b").config)
WORKLOAD = Workload(sequence_length=8192, global_batch=16)
CLUSTER = gpus(2, 8).model_copy(update={"gpu": "NVIDIA H100 80GB HBM3", "inter_node_gb_per_s": 50.0})


def test_more_ranks_to_a_model_hold_less_of_a_micro_batch_and_wait_for_each_other_longer() -> None:
    """Comparison at equal tokens of a step and equally spread states: each rank computes as much, and exchanges come on
    top."""
    strategies = [Fsdp2Config(dp_shard=16 // size, tensor_parallel=size) for size in (1, 2, 4, 8)]
    rows = from_configs([TrialConfig(strategy=strategy) for strategy in strategies], 8192, 16, 16)
    assert (rows.tokens * rows.accumulation).tolist() == [8192.0] * 4
    evaluation = evaluate(SHAPE, rows, WORKLOAD, CLUSTER)
    assert evaluation.step is not None
    terms = evaluation.memory.terms
    assert np.all(np.diff(terms["activations"] + terms["logits"]) < 0)
    assert np.allclose(terms["parameters"], terms["parameters"][0]) and np.allclose(
        terms["optimizer"], terms["optimizer"][0]
    )
    full = Fsdp2Config(dp_shard=16, grad_sync="last"), Fsdp2Config(dp_shard=2, tensor_parallel=8, grad_sync="last")
    again = evaluate(
        SHAPE, from_configs([TrialConfig(strategy=strategy) for strategy in full], 8192, 16, 16), WORKLOAD, CLUSTER
    )
    assert again.step is not None and again.step.exposed[1] > again.step.exposed[0]


def test_splitting_over_the_network_takes_longer_than_within_a_host() -> None:
    speeds = []
    for size in (8, 16):
        config = TrialConfig(strategy=Fsdp2Config(dp_shard=16 // size, tensor_parallel=size), micro_batch=size)
        rows = from_configs([config], 8192, 16, 16)
        step = evaluate(SHAPE, rows, WORKLOAD, CLUSTER).step
        assert step is not None
        speeds.append(float(step.tokens_per_s_per_gpu[0]))
    assert speeds[1] < 0.7 * speeds[0]


@pytest.mark.parametrize(("size", "why"), [(3, "number of ranks"), (16, "heads of keys")])
def test_what_cannot_be_split_is_not_predicted(size: int, why: str) -> None:
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=16 // size, tensor_parallel=size))
    with pytest.raises(ValueError, match=why):
        predict(SHAPE, WORKLOAD, CLUSTER, config)
