"""What the worker saw of its machine around a run: the circumstances of a measurement, for a person and for the record."""

from typing import Annotated

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ONE_LINE

Seen = Annotated[str, Field(max_length=200, pattern=ONE_LINE)]


class DeviceSeen(Schema):
    """One GPU during one run, by NVML."""

    uuid: Seen
    memory_before_gib: float
    """In use before the ranks started."""
    foreign_processes: tuple[Seen, ...] = Field(default=(), max_length=500)
    """Compute processes that were not ours, as `pid (memory)`."""
    throttled_share: float | None
    """Share of looks (one a second) at which clocks were lowered by heat, power brake or hardware; a power cap is normal.
    None: the GPU does not say."""
    throttle_reasons: tuple[Seen, ...] = Field(default=(), max_length=100)
    power_capped_share: float | None
    """Share of looks at which the software power cap held the clocks down; None: the GPU does not say."""
    xids: tuple[int, ...] = Field(default=(), max_length=500)
    """Driver errors during the run (NVIDIA's Xid catalogue)."""
    uncorrected_ecc: int | None = None
    """Uncorrected memory errors that came during the run; None where the device has no ECC."""


class Conditions(Schema):
    """Of one run. None: could not be seen."""

    devices: tuple[DeviceSeen, ...] = Field(default=(), max_length=256)
    foreign_cpu_cores: float | None = None
    """Cores that anything but the ranks kept busy, on average over the run."""
    memory_available_gib: float | None = None
    """Host memory that could be had before the ranks started, within the control group's limit."""
    cpu_throttled_s: float | None = None
    """Seconds for which the control group's CPU limit held threads back, added over CPUs."""
    rank_pace_s: tuple[float, ...] = Field(default=(), max_length=5000)
    """Seconds each rank took for the same small calculation before training: a slow one is a straggler."""
