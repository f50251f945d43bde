"""Where a rank stands among its peers, as its launcher put it into the environment."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from shardtune.workers.rank.device import Device, DeviceKind, of_kind

MakeDevice = Callable[[DeviceKind, int], Device]


def device_kind() -> DeviceKind:
    """What this process works on, as its launcher said; one started by hand takes a GPU where torch finds one."""
    said = os.environ.get("DS_ACCELERATOR")
    if said is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cuda" if said == "cuda" else "cpu"


@dataclass(frozen=True)
class Place:
    """One rank's position and device."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    accelerator: Device

    @classmethod
    def from_environment(cls, kind: DeviceKind, make_device: MakeDevice = of_kind) -> "Place":
        """Read what torchrun and the fork server both set."""
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        return cls(
            rank=int(os.environ.get("RANK", "0")),
            local_rank=local_rank,
            world_size=world_size,
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size))),
            accelerator=make_device(kind, local_rank),
        )

    @property
    def device(self) -> torch.device:
        """Where this rank's tensors live."""
        return self.accelerator.tensors

    @property
    def is_cuda(self) -> bool:
        """Whether that is a GPU: libraries take other arguments there."""
        return self.device.type == "cuda"
