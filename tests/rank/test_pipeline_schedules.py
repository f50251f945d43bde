"""Micro batches that a rank is predicted to hold at once are those that torch's schedules begin before they end others."""

from typing import Any

import pytest
from torch.distributed.pipelining import schedules as torchs

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.strategies.pipeline_schedules import FACTS, PipelineSchedule
from shardtune.api_schemas.training.models import preset
from shardtune.tuner.prediction import stages
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.footprint.stages import in_flight
from shardtune.tuner.prediction.shapes.config_shape import from_config

SHAPE = from_config(preset("llama-3.1-8b").config)


def most_held(schedule: PipelineSchedule, rank: int, ranks: int, virtual: int, micro_batches: int) -> int:
    """Most micro batches held at once, by the actions that torch plans for a rank; parts of a micro batch count one by
    one."""
    new: Any = object.__new__(torchs.get_schedule_class(FACTS[schedule].title))
    new.pp_group_size, new.rank, new._n_microbatches = ranks, rank, micro_batches
    new.n_local_stages, new.num_stages, new._num_stages = virtual, ranks * virtual, ranks * virtual
    new.number_of_rounds = max(1, micro_batches // ranks)
    new.microbatches_per_round = micro_batches // new.number_of_rounds
    now = most = 0
    for planned in new._calculate_single_rank_operations(rank):
        for action in (planned.sub_actions or (planned,)) if planned is not None else ():
            now += action.computation_type == torchs.FORWARD
            most = max(most, now)
            now -= action.computation_type in (torchs.FULL_BACKWARD, torchs.BACKWARD_WEIGHT)
    return most


@pytest.mark.parametrize("micro_batches", [8, 16])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("schedule", "virtual"),
    [
        ("interleaved_1f1b", 2),
        ("interleaved_1f1b", 4),
        ("interleaved_zero_bubble", 2),
        ("interleaved_zero_bubble", 4),
        ("zbv_zero_bubble", 2),
        ("dual_pipe_v", 2),
    ],
)
def test_a_rank_holds_what_torchs_schedule_begins(
    schedule: PipelineSchedule, virtual: int, ranks: int, micro_batches: int
) -> None:
    config = Fsdp2Config(
        dp_shard=1,
        pipeline_parallel=ranks,
        pipeline_schedule=schedule,
        pipeline_virtual_stages=virtual,
        reshard_after_forward=False,
        grad_sync="last",
    )
    rows = from_configs([TrialConfig(strategy=config)], 4096, ranks, micro_batches)
    parts = stages.rank_shapes(SHAPE, stages.StageLayout(ranks, virtual, schedule))
    predicted = [float(in_flight(part, rows)[0][0]) * virtual for part in parts]
    assert predicted == [most_held(schedule, rank, ranks, virtual, micro_batches) for rank in range(ranks)]
