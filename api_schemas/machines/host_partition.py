"""What one of several workers on a host has of it: devices that another of them may have, too."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ONE_LINE

MOST_DEVICES = 256
Device = Annotated[str, Field(min_length=1, max_length=64, pattern=ONE_LINE)]
"""A GPU's UUID, or a core such as `cpu3`."""


class HostPartition(Schema):
    """Devices of a host, and what of its links the ranks there need."""

    host: str = Field(min_length=8, max_length=64, pattern=r"^[a-z0-9]+$", examples=["0c5b1a7e94d2f386"])
    """The same for every worker of one machine since it booted."""
    devices: tuple[Device, ...] = Field(min_length=1, max_length=MOST_DEVICES, examples=[["cpu0"]])
    """GPUs by UUID, or cores for CPU ranks."""
    crosses: tuple[Device, ...] = Field(default=(), max_length=MOST_DEVICES, examples=[["cpu0", "cpu1"]])
    """Devices of the host between which its collectives take the way that theirs would take, too: those under the same PCIe
    switches or on the same NUMA nodes. None for one device, which has no collectives, and where NVLink joins each pair."""
    least_ranks: int = Field(default=1, ge=1)
    """Studies of fewer ranks are for smaller shares of the host."""
    part: float = Field(default=1.0, gt=0, le=1)
    """Of the host's cores and memory."""

    def meets(self, other: "HostPartition") -> bool:
        """Whether two runs would get in each other's way: a device that both have, or links that the ranks of both need."""
        return not (set(self.devices).isdisjoint(other.devices) and set(self.crosses).isdisjoint(other.crosses))


class HostWait(Schema):
    """A worker waits until enough of its host is free."""

    since: datetime
    is_alone: bool
    """For a run that nothing may run beside."""
