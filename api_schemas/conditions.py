"""What the worker saw of its machine around a run: the circumstances of a measurement, for a person and for the record."""

from shardtune.api_schemas.base import Schema


class DeviceSeen(Schema):
    """One GPU during one run, by NVML."""

    uuid: str
    memory_before_gib: float
    """In use before the ranks started."""
    foreign_processes: tuple[str, ...] = ()
    """Compute processes that were not ours, as `pid (memory)`."""
    throttled_share: float
    """Share of looks (one a second) at which clocks were lowered by heat, power brake or hardware; a power cap is normal."""
    throttle_reasons: tuple[str, ...] = ()
    power_capped_share: float
    """Share of looks at which the software power cap held the clocks down."""
    xids: tuple[int, ...] = ()
    """Driver errors during the run (NVIDIA's Xid catalogue)."""
    uncorrected_ecc: int | None = None
    """Uncorrected memory errors that came during the run; None where the device has no ECC."""


class Conditions(Schema):
    """Of one run. None: could not be seen."""

    devices: tuple[DeviceSeen, ...] = ()
    foreign_cpu_cores: float | None = None
    """Cores that anything but the ranks kept busy, on average over the run."""
    memory_available_gib: float | None = None
    """Host memory that could be had before the ranks started, within the control group's limit."""
    cpu_throttled_s: float | None = None
    """Seconds for which the control group's CPU limit held threads back, added over CPUs."""
    rank_pace_s: tuple[float, ...] = ()
    """Seconds each rank took for the same small calculation before training: a slow one is a straggler."""
