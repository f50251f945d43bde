"""Absent peers of a rehearsed rank: torch's fake process group, and the vote of pipeline stages that nobody answers."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import schedules
from torch.testing._internal.distributed.fake_pg import FakeStore


def join(rank: int, ranks: int) -> None:
    """Join a simulated process group of this number of ranks. Its collectives return at once and transfer nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)


def process_groups() -> int:
    """Number of process groups to which this rank belongs."""
    return len(dist.distributed_c10d._world.pg_map)


@contextlib.contextmanager
def agreeing_stages(schedule: Any = schedules._PipelineSchedule) -> Iterator[None]:
    """Context in which torch's pipeline stages take the shapes of their tensors as given. They would otherwise ask each
    other by messages, and read an answer; but in a rehearsal tensors have no values.

    `schedule`: torch's base class of all schedules.
    """
    # Stages vote on it before their first step and read the result's value (2.12 to 2.14, `_warmup_p2p`); tensors that
    # nobody sent have none. torch 2.11 takes the shapes without a vote, and 2.15 holds none in a fake process group.
    original = getattr(schedule, "_warmup_p2p", None)
    if original is None:
        yield
        return
    mode: Any = importlib.import_module("torch.distributed.pipelining._utils").InferenceMode

    def agree(_schedule: Any, stages: list[Any], _has_backward: bool, _p2p_done: bool) -> None:
        for stage in stages:
            stage._inference_mode = mode.STATIC

    schedule._warmup_p2p = agree
    try:
        yield
    finally:
        schedule._warmup_p2p = original
