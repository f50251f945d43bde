"""Partition of a host for one of several workers. Another worker may have the same devices in its own."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ONE_LINE

MOST_DEVICES = 256
Device = Annotated[str, Field(min_length=1, max_length=64, pattern=ONE_LINE)]
"""A GPU's UUID, or a core such as `cpu3`."""


class HostPartition(Schema):
    """Devices of a host, and the links of the host that the ranks on them need."""

    host: str = Field(min_length=8, max_length=64, pattern=r"^[a-z0-9]+$", examples=["0c5b1a7e94d2f386"])
    """Id of the host, equal for every worker of one machine since it booted."""
    devices: tuple[Device, ...] = Field(min_length=1, max_length=MOST_DEVICES, examples=[["cpu0"]])
    """GPUs by UUID, or cores for CPU ranks."""
    crosses: tuple[Device, ...] = Field(default=(), max_length=MOST_DEVICES, examples=[["cpu0", "cpu1"]])
    """Devices of the host whose collectives would use the same links: those under the same PCIe switches or on the
    same NUMA nodes. Empty for one device, which has no collectives, and where NVLink joins each pair."""
    least_ranks: int = Field(default=1, ge=1)
    """Least number of ranks of a study; those of fewer are for smaller partitions of the host."""
    part: float = Field(default=1.0, gt=0, le=1)
    """Fraction of the host's cores and memory."""

    def conflicts_with(self, other: "HostPartition") -> bool:
        """Whether two runs would disturb each other: both have a device, or the ranks of both need the same links."""
        return not (set(self.devices).isdisjoint(other.devices) and set(self.crosses).isdisjoint(other.crosses))


class HostWait(Schema):
    """Wait of a worker until enough of its host is free."""

    since: datetime
    is_alone: bool
    """Whether the wait is for an exclusive run, beside which nothing may run."""
