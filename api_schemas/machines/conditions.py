"""Conditions of a machine around a run, as its worker observed them: the circumstances of a measurement."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ONE_LINE

Text = Annotated[str, Field(max_length=200, pattern=ONE_LINE)]
_MOST_DEVICES = 256


class DeviceSeen(Schema):
    """One GPU during one run, as reported by NVML."""

    uuid: Text
    host: Text | None = None
    """Host of the GPU; None from older workers."""
    memory_before_gib: float
    """Memory in use before the ranks started."""
    foreign_processes: tuple[Text, ...] = Field(default=(), max_length=500)
    """Compute processes that were not ours, as `pid (memory)`."""
    throttled_fraction: float | None
    """Fraction of samples (one a second) at which clocks were lowered by heat, power brake or hardware; a power cap
    is normal. None: the GPU does not report it."""
    throttle_reasons: tuple[Text, ...] = Field(default=(), max_length=100)
    power_capped_fraction: float | None
    """Fraction of samples at which the software power cap held the clocks down; None: the GPU does not report it."""
    xids: tuple[int, ...] = Field(default=(), max_length=500)
    """Driver errors during the run (NVIDIA's Xid catalogue)."""
    uncorrected_ecc: int | None = None
    """Uncorrected memory errors that occurred during the run; None where the device has no ECC."""

    @property
    def is_quiet(self) -> bool:
        """Whether the device shows nothing unusual."""
        return not (self.foreign_processes or self.throttled_fraction or self.xids or self.uncorrected_ecc)


class NodeConditions(Schema):
    """Conditions of one host and the ranks on it. None: could not be observed."""

    host: Text
    first_rank: int = Field(ge=0)
    ranks: int = Field(ge=1)
    foreign_cpu_cores: float | None = None
    memory_available_gib: float | None = None
    cpu_throttled_s: float | None = None
    oom_kills: int = Field(default=0, ge=0)
    """Kills by the kernel's out-of-memory killer in the ranks' control group."""
    interface: Text | None = None
    """Network interface used between the hosts; None on a single host."""

    def has(self, rank: int) -> bool:
        """Whether a rank ran on this host."""
        return self.first_rank <= rank < self.first_rank + self.ranks


class Conditions(Schema):
    """Conditions of one run; over several hosts each figure is the worst host's. None: could not be observed."""

    nodes: tuple[NodeConditions, ...] = Field(default=(), max_length=1000)
    """Conditions of each host; empty from older workers."""
    devices: tuple[DeviceSeen, ...] = Field(default=(), max_length=_MOST_DEVICES)
    """Conditions of each GPU. Where there are more than fit, those with something unusual come first."""
    foreign_cpu_cores: float | None = None
    """Cores that processes other than the ranks kept busy, on average over the run."""
    memory_available_gib: float | None = None
    """Host memory available before the ranks started, within the control group's limit."""
    cpu_throttled_s: float | None = None
    """Seconds for which the control group's CPU limit held threads back, added over CPUs."""
    rank_pace_s: tuple[float, ...] = Field(default=(), max_length=5000)
    """Seconds each rank took for the same small calculation before training: a slow one is a straggler."""
    neighbours: int = Field(default=0, ge=0)
    """Workers that ran something on other devices of the host meanwhile, according to the leases that the service
    gave."""

    @classmethod
    def joined(cls, parts: Sequence["Conditions"]) -> "Conditions":
        """Join the conditions of several hosts in the order of their ranks, or of several launches."""
        devices = [device for part in parts for device in part.devices]
        return cls(
            nodes=tuple(node for part in parts for node in part.nodes),
            devices=tuple(sorted(devices, key=lambda device: device.is_quiet)[:_MOST_DEVICES]),
            foreign_cpu_cores=max(_without_none(part.foreign_cpu_cores for part in parts), default=None),
            memory_available_gib=min(_without_none(part.memory_available_gib for part in parts), default=None),
            cpu_throttled_s=max(_without_none(part.cpu_throttled_s for part in parts), default=None),
            rank_pace_s=tuple(pace for part in parts for pace in part.rank_pace_s),
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts, each once."""
        return tuple(dict.fromkeys(node.host for node in self.nodes))

    def host_of(self, rank: int) -> str | None:
        """Return the host that a rank ran on; None where it is unknown."""
        return next((node.host for node in self.nodes if node.has(rank)), None)

    def had_oom_kill(self, rank: int) -> bool:
        """Whether the kernel's out-of-memory killer struck on the rank's host."""
        return any(node.oom_kills and node.has(rank) for node in self.nodes)


def _without_none(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
