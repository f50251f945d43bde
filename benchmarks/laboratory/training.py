"""One step of each program of the laboratory on this rank."""

import functools
from collections.abc import Callable
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from benchmarks.laboratory import streams, zero
from benchmarks.laboratory.paced import stack
from benchmarks.laboratory.programs import BLOCKS, BUCKET_MIB, HIDDEN, STAGE_MICRO_BATCHES, STAGES, TOKENS
from shardtune.workers.rank.strategies.pipeline import make_synced_stage

Step = Callable[[], None]


def step_of(name: str, slowness: float) -> Step:
    """Function that does one step of the program, whose blocks wait `slowness` times as long as usual."""
    if name.startswith("stages-"):
        return _stages(name.removeprefix("stages-"), slowness)
    if name.startswith("zero"):
        return _zero(int(name.removeprefix("zero")), slowness)
    return _whole(_model(name, stack(slowness)), 2 if name == "ddp-accumulation" else 1)


def _model(name: str, blocks: nn.Sequential) -> nn.Module:
    world = dist.get_world_size()
    if name.startswith("ddp"):
        return _ddp(blocks)
    if name == "hsdp":
        return streams.shard(blocks, _mesh(max(1, world // 2), min(2, world)))
    return streams.shard(blocks, _mesh(world), reshard=name != "fsdp2-kept")


def _ddp(model: nn.Module, group: dist.ProcessGroup | None = None) -> nn.Module:
    return DistributedDataParallel(model, process_group=group, bucket_cap_mb=BUCKET_MIB, gradient_as_bucket_view=True)


def _mesh(*shape: int) -> DeviceMesh:
    return init_device_mesh("cpu", shape, mesh_dim_names=("first", "second")[: len(shape)])


def _whole(model: nn.Module, micro_batches: int) -> Step:
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        for _ in range(micro_batches - 1):
            with model.no_sync():  # type: ignore[operator]
                model(hidden).sum().backward()
        model(hidden).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        hidden.grad = None

    return step


def _zero(stage: int, slowness: float) -> Step:
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    engine = zero.engine(stack(slowness), stage)

    def step() -> None:
        engine.backward(engine(hidden).sum())
        engine.step()
        hidden.grad = None

    return step


def _begin_backward(part: nn.Module, is_last: bool) -> None:
    """Reduce gradients in a step's last backward only."""
    sharded = cast(FSDPModule, part)
    sharded.set_is_last_backward(is_last)
    sharded.set_requires_gradient_sync(is_last)


def _stages(kind: str, slowness: float) -> Step:
    mesh = _mesh(STAGES, dist.get_world_size() // STAGES)
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    place, replicas = coordinate[0], mesh.get_group("second")
    # Of half of the blocks and twice the samples of a rank, so that each rank waits as long as without stages.
    part: nn.Module = stack(slowness / STAGES, BLOCKS // STAGES)
    if kind == "fsdp2":
        part = streams.shard(part, mesh["second"])  # type: ignore[arg-type]
    elif dist.get_world_size(replicas) > 1:
        part = _ddp(part, replicas)
    # As the product does: torch's own stage keeps FSDP2's weights gathered after each backward but the last.
    make = functools.partial(make_synced_stage, _begin_backward) if kind == "fsdp2" else PipelineStage
    stage = make(part, place, STAGES, torch.device("cpu"), group=mesh.get_group("first"))
    schedule = Schedule1F1B(stage, n_microbatches=STAGE_MICRO_BATCHES, loss_fn=lambda output, _: output.sum())
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    rows = STAGE_MICRO_BATCHES * TOKENS // STAGES
    hidden, labels = torch.randn(rows, HIDDEN), torch.zeros(rows, 1)

    def step() -> None:
        if place == 0:
            schedule.step(hidden)
        else:
            schedule.step(target=labels)
        optimizer.step()
        optimizer.zero_grad()

    return step
