"""Position of a rank among its peers and its device, from the environment that its launcher set."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from shardtune.workers.rank.device import Device, DeviceKind, of_kind

MakeDevice = Callable[[DeviceKind, int], Device]


def device_kind() -> DeviceKind:
    """Kind of device (`cuda` or `cpu`) that the launcher chose. A process that was started by hand uses a GPU if torch
    finds one."""
    accelerator = os.environ.get("DS_ACCELERATOR")
    if accelerator is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cuda" if accelerator == "cuda" else "cpu"


@dataclass(frozen=True)
class RankContext:
    """Rank number, group sizes and device of one rank, as its launcher set them."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    accelerator: Device

    @classmethod
    def from_environment(cls, kind: DeviceKind, make_device: MakeDevice = of_kind) -> "RankContext":
        """Read the rank's position from the environment variables that torchrun and the fork server set."""
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        return cls(
            rank=int(os.environ.get("RANK", "0")),
            local_rank=local_rank,
            world_size=world_size,
            # Only torchrun and our launchers set it; a single process started by hand has all ranks on its host.
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size))),
            accelerator=make_device(kind, local_rank),
        )

    @property
    def device(self) -> torch.device:
        """`torch.device` on which this rank's tensors are placed."""
        return self.accelerator.tensors

    @property
    def is_cuda(self) -> bool:
        """Whether the rank's device is a GPU. Some calls of libraries need other arguments then."""
        return self.device.type == "cuda"
