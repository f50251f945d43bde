"""Checkpointing of every k-th block: what is kept, what is recomputed, and which change is proposed."""

import numpy as np
import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Strategy, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction.candidates import FULL, from_rows
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.tuner.prediction.neighbours import neighbours
from shardtune.tuner.prediction.shapes.config_shape import from_config
from tests.support.values.tuner_inputs import gpus

SHAPE = from_config(preset("llama-3.1-8b").config)
WORKLOAD = Workload(sequence_length=4096, global_batch=16)
CLUSTER = gpus().model_copy(update={"gpu": "NVIDIA H100 80GB HBM3"})
LEVELS = (("none", 1), ("full", 4), ("full", 3), ("full", 2), ("full", 1))


@pytest.mark.parametrize(
    "strategy",
    [DdpConfig(), ZeroConfig(stage=1), ZeroConfig(stage=3), Fsdp1Config(dp_shard=8), Fsdp2Config(dp_shard=8)],
    ids=lambda strategy: strategy.describe(),
)
def test_more_checkpointed_blocks_keep_less_and_compute_more(strategy: Strategy) -> None:
    configs = [
        TrialConfig(strategy=strategy, micro_batch=2, activation_checkpointing=mode, checkpoint_every=every)
        for mode, every in LEVELS
    ]
    evaluation = evaluate(SHAPE, from_configs(configs, 4096, 8, 16), WORKLOAD, CLUSTER)
    assert evaluation.step is not None
    assert np.all(np.diff(evaluation.memory.allocated) < 0)
    assert np.all(np.diff(evaluation.step.total) > 0)


def test_a_step_over_some_blocks_keeps_their_share_of_what_full_checkpointing_spares() -> None:
    rows = from_rows([{"checkpointing": FULL, "checkpoint_every": every} for every in (1, 2, 3, 4)])
    assert rows.checkpointed(32).tolist() == [32, 16, 10, 8]
    assert rows.checkpointed(3).tolist() == [3, 1, 1, 0]


def test_where_memory_lacks_a_little_a_few_blocks_are_proposed() -> None:
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=8))
    words = [near.changes for near in neighbours(config, CLUSTER) if near.weight == 1]
    assert ("full checkpointing of every 4th block",) in words
    from_half = neighbours(
        config.model_copy(update={"activation_checkpointing": "full", "checkpoint_every": 2}), CLUSTER
    )
    assert {near.config.checkpoint_every for near in from_half} == {1, 2}
