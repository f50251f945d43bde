"""Effects of expert parallelism on predicted memory and time."""

from dataclasses import replace

import numpy as np
import pytest

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate
from shardtune.tuner.prediction.predict import predict
from shardtune.tuner.prediction.shapes.config_shape import from_config
from tests.support.values.tuner_inputs import gpus

SHAPE = from_config(preset("mixtral-8x7b").config)
CLUSTER = gpus(2, 8).model_copy(update={"gpu": "NVIDIA H100 80GB HBM3", "inter_node_gb_per_s": 50.0})
FULL_MODEL, DIVIDED = Fsdp2Config(dp_shard=16), Fsdp2Config(dp_shard=16, expert_parallel=8)


def evaluated(*strategies: Fsdp2Config, length: int = 4096) -> Evaluation:
    rows = from_configs([TrialConfig(strategy=strategy) for strategy in strategies], length, 16, 16)
    return evaluate(SHAPE, rows, Workload(sequence_length=length, global_batch=16), CLUSTER)


def test_states_are_as_large_and_less_is_gathered() -> None:
    terms = evaluated(
        Fsdp2Config(dp_shard=8, dp_replicate=2), Fsdp2Config(dp_shard=8, dp_replicate=2, expert_parallel=8)
    ).memory.terms
    assert np.isclose(*terms["optimizer"])
    before, after = terms["gathered"]
    assert after < before / 3


def test_experts_stay_and_tokens_travel() -> None:
    """Few tokens: what gathers experts waits for the network. Many: both wait for the experts' work, and tokens travel besides."""
    few, many = evaluated(FULL_MODEL, DIVIDED, length=64), evaluated(FULL_MODEL, DIVIDED, length=8192)
    assert few.step is not None and many.step is not None
    assert few.step.communication[1] < few.step.communication[0] / 3
    grown = many.step.communication - few.step.communication
    assert grown[1] > 10 * grown[0]


def test_candidates_of_all_kinds_are_predicted_at_once_as_one_by_one() -> None:
    kinds = (FULL_MODEL, DIVIDED, Fsdp2Config(dp_shard=8, dp_replicate=2, expert_parallel=2))
    together, alone = evaluated(*kinds), [evaluated(kind) for kind in kinds]
    assert together.step is not None
    for index, item in enumerate(alone):
        assert item.step is not None
        assert np.isclose(together.memory.allocated[index], item.memory.allocated[0])
        assert np.isclose(together.step.total[index], item.step.total[0])
        assert np.isclose(sum(part[index] for part in together.step.parts.values()), together.step.total[index])


def test_what_cannot_be_divided_is_not_predicted() -> None:
    dense = replace(SHAPE, experts=1, experts_per_token=1)
    with pytest.raises(ValueError, match="it has no experts"):
        predict(dense, Workload(sequence_length=64, global_batch=16), CLUSTER, TrialConfig(strategy=DIVIDED))
