"""Where a rank stands among its peers, as its launcher put it into the environment."""

import os
from dataclasses import dataclass
from typing import Literal

import torch


def device_kind() -> Literal["cuda", "cpu"]:
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
    device: torch.device

    @classmethod
    def from_environment(cls, device: Literal["cuda", "cpu"]) -> "Place":
        """Read what torchrun and the warm host both set."""
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        return cls(
            rank=int(os.environ.get("RANK", "0")),
            local_rank=local_rank,
            world_size=world_size,
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size))),
            device=torch.device("cuda", local_rank) if device == "cuda" else torch.device("cpu"),
        )

    @property
    def is_cuda(self) -> bool:
        """Whether this rank has a GPU."""
        return self.device.type == "cuda"
