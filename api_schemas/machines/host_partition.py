"""Schemas of a host partition: the part of a host's devices used by one of several workers. Partitions of different
workers may overlap."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ONE_LINE

MOST_DEVICES = 256
Device = Annotated[str, Field(min_length=1, max_length=64, pattern=ONE_LINE)]
"""Device of a host: the UUID of a GPU, or a CPU core such as `cpu3`."""


class HostPartition(Schema):
    """Part of a host that belongs to one worker: its devices, and the other devices that share communication links with
    them."""

    host: str = Field(min_length=8, max_length=64, pattern=r"^[a-z0-9]+$", examples=["0c5b1a7e94d2f386"])
    """Id of the host. All workers on one machine have the same id until the machine boots again."""
    devices: tuple[Device, ...] = Field(min_length=1, max_length=MOST_DEVICES, examples=[["cpu0"]])
    """Devices that belong to the partition: UUIDs of GPUs, or CPU cores for CPU ranks."""
    shared_link_devices: tuple[Device, ...] = Field(default=(), max_length=MOST_DEVICES, examples=[["cpu0", "cpu1"]])
    """Devices of the host, those of the partition included, whose collectives use the same links: devices under the
    same PCIe switches or NUMA nodes. Empty if the partition has a single device, which needs no collectives, and if
    NVLink joins each pair of GPUs."""
    least_ranks: int = Field(default=1, ge=1)
    """Minimum number of ranks that a study must have to run on this partition. Studies with fewer ranks go to smaller
    partitions of the host."""
    fraction: float = Field(default=1.0, gt=0, le=1)
    """Fraction of the host's cores and memory that belongs to the partition."""

    def conflicts_with(self, other: "HostPartition") -> bool:
        """Whether runs on two partitions would disturb each other, because the partitions share a device or need the
        same links."""
        return not (
            set(self.devices).isdisjoint(other.devices)
            and set(self.shared_link_devices).isdisjoint(other.shared_link_devices)
        )


class HostWait(Schema):
    """State of a worker that waits until enough devices of its host are free."""

    since: datetime
    is_exclusive: bool
    """Whether the run for which the worker waits is exclusive, which means that nothing else may run on the host
    meanwhile."""
