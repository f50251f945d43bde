"""Effects of context parallelism on predicted memory and time."""

import numpy as np
import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, Strategy, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.tuner.prediction.predict import predict
from shardtune.tuner.prediction.shapes.config_shape import from_config
from tests.support.values.tuner_inputs import gpus

SHAPE = from_config(preset("llama-3.1-8b").config)
WORKLOAD = Workload(sequence_length=65_536, global_batch=16)
CLUSTER = gpus(2, 8).model_copy(update={"gpu": "NVIDIA H100 80GB HBM3", "inter_node_gb_per_s": 50.0})
SIZES = (1, 2, 4, 8)


@pytest.mark.parametrize(
    "strategy", [DdpConfig(), ZeroConfig(stage=3), Fsdp2Config(dp_shard=16)], ids=lambda strategy: strategy.describe()
)
def test_more_ranks_to_a_sample_hold_less_and_wait_for_each_other_longer(strategy: Strategy) -> None:
    """Comparison at equal tokens of a step: each rank computes as much, and exchanges come on top."""
    configs = [TrialConfig(strategy=strategy, context_parallel=size) for size in SIZES]
    rows = from_configs(configs, WORKLOAD.sequence_length, 16, WORKLOAD.global_batch)
    assert (rows.tokens * rows.accumulation).tolist() == [65_536.0] * 4
    evaluation = evaluate(SHAPE, rows, WORKLOAD, CLUSTER)
    assert evaluation.step is not None
    assert np.all(np.diff(evaluation.memory.terms["activations"]) < 0)
    assert np.all(evaluation.step.communication[1:] > evaluation.step.communication[0])


def test_a_sequence_that_does_not_fit_one_rank_fits_several() -> None:
    alone, shared = (
        predict(SHAPE, WORKLOAD, CLUSTER, TrialConfig(strategy=Fsdp2Config(dp_shard=16), context_parallel=size))
        for size in (1, 8)
    )
    assert (alone.memory.verdict, shared.memory.verdict) == ("does not fit", "may fit")
    assert 4 * alone.longest_sequence < shared.longest_sequence


def test_exchanges_over_the_network_take_longer_than_within_a_host() -> None:
    single_gpus, two = gpus(1, 16), gpus(2, 8)
    seconds = []
    for cluster in (single_gpus, two):
        changed = cluster.model_copy(update={"gpu": "NVIDIA H100 80GB HBM3", "inter_node_gb_per_s": 50.0})
        config = TrialConfig(strategy=DdpConfig(grad_sync="last"), context_parallel=16)
        rows = from_configs([config], WORKLOAD.sequence_length, 16, WORKLOAD.global_batch)
        step = evaluate(SHAPE, rows, WORKLOAD, changed).step
        assert step is not None
        seconds.append(float(step.parts["communication"][0]))
    assert seconds[1] > seconds[0]


@pytest.mark.parametrize(("size", "why"), [(3, "number of ranks"), (16, "heads of queries and of keys")])
def test_what_cannot_be_shared_is_not_predicted(size: int, why: str) -> None:
    config = TrialConfig(strategy=DdpConfig(), context_parallel=size)
    with pytest.raises(ValueError, match=why):
        predict(SHAPE, WORKLOAD, CLUSTER, config)
