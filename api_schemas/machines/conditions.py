"""Schemas of a machine's state around a run, such as other processes, throttling and errors, as observed by its worker."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ONE_LINE
from shardtune.api_schemas.protocol import Since

Text = Annotated[str, Field(max_length=200, pattern=ONE_LINE)]
_MOST_DEVICES = 256
MOST_PROGRAMS = 5
"""Maximum number of programs that the state of the machines during a run names."""


class ProgramLoad(Schema):
    """Average number of CPU cores that one program used, summed over all of its processes, as `top` would show it."""

    name: Text = Field(examples=["clang"])
    """Short name of the program, without its command line."""
    cores: float = Field(ge=0, le=1e6, examples=[0.9])
    """Average number of CPU cores that the program used."""


OWN_PROCESSES = "Shardtune itself"
"""Name of the program that stands for the worker and for the service that the same command or shell started: no program of
somebody else, though it takes cores from the ranks."""
NONE_VISIBLE = "their processes ended before the run did, or the worker cannot see them"
"""Reason why no program is named although some kept cores busy."""
_NAMELESS = "ended or hidden programs"
"""Programs that nobody could name: their processes ended before the run did, are invisible to the worker, or used less than
0.05 cores each."""


def program_names(programs: Sequence[ProgramLoad], cores: float | None = None) -> str:
    """Return the names of programs with the CPU cores that each used, such as `chrome on 0.9 cores, cc1plus on 0.4
    cores`; empty if there are none. `cores`: number of cores that all programs used, so that the rest is stated, too."""
    used = [(program.name, round(program.cores, 1)) for program in programs]
    rest = round(round(cores or 0.0, 1) - sum(part for _, part in used), 1)
    if used and rest > 0:
        used.append((_NAMELESS, rest))
    return ", ".join(f"{name} on {part:.1f} cores" for name, part in used)


MAX_THROTTLED_FRACTION = 0.1
FEWEST_THROTTLED_SAMPLES = 3
"""Minimum number of samples with lowered clocks at which a GPU counts as throttled. Their fraction of the run's samples
must also be above `MAX_THROTTLED_FRACTION`."""


class DeviceSeen(Schema):
    """State of one GPU during one run, as reported by NVML."""

    uuid: Text
    host: Text | None = None
    """Name of the host that contains the GPU; None from workers of older releases."""
    memory_before_gib: float
    """GPU memory in GiB that was in use before the ranks started."""
    foreign_processes: tuple[Text, ...] = Field(default=(), max_length=500)
    """Compute processes on the GPU that did not belong to the run, each as its process id and memory: `pid (memory)`.
    """
    throttled_fraction: float | None
    """Fraction of samples (one per second) in which heat, the power brake or the hardware lowered the GPU's clocks. The
    power cap is not counted, because it is normal. None if the GPU does not report it."""
    throttle_reasons: tuple[Text, ...] = Field(default=(), max_length=100)
    power_capped_fraction: float | None
    """Fraction of samples (one per second) at which the software power cap lowered the GPU's clocks; None if the GPU
    does not report it."""
    samples: int | None = Field(default=None, ge=0)
    """Number of samples, one per second, behind the GPU's fractions and means. None from workers of older releases."""
    sm_clock_mhz: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Mean clock of the GPU's multiprocessors in MHz, over the samples (one per second); None if the GPU does not
    report it."""
    power_w: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Mean power draw of the GPU in watts; None if the GPU does not report it."""
    temperature_c: float | None = Field(default=None, allow_inf_nan=False)
    """Highest temperature of the GPU in degrees Celsius; None if the GPU does not report it."""
    xids: tuple[int, ...] = Field(default=(), max_length=500)
    """Driver errors of the GPU during the run (numbers of NVIDIA's Xid catalogue)."""
    uncorrected_ecc: int | None = None
    """Number of uncorrected memory errors of the GPU during the run; None if the device has no ECC."""
    recovery_action: Annotated[int | None, Since(2, may_be_dropped=True)] = Field(default=None, examples=[1])
    """Recovery action that the driver asked for during the run and not before it (`nvmlDeviceGpuRecoveryAction_t`: 1 is a
    reset of the GPU, 2 a reboot); 0 if it asked for none. None if the driver does not tell, as drivers before 570."""
    lost: Annotated[Text | None, Since(2, may_be_dropped=True)] = Field(default=None, examples=["GPU is lost"])
    """Error of the driver (NVML) if the GPU did not answer any more at the end of the run, such as `GPU is lost`; None
    if it answered."""

    @property
    def is_throttled(self) -> bool:
        """Whether heat, the power brake or the hardware lowered the GPU's clocks so long that the run's speed is
        doubtful."""
        if self.throttled_fraction is None or self.throttled_fraction <= MAX_THROTTLED_FRACTION:
            return False
        # One sample of a short run is a tenth of it, and reports an instant.
        return self.samples is None or self.throttled_fraction * self.samples >= FEWEST_THROTTLED_SAMPLES

    @property
    def is_quiet(self) -> bool:
        """Whether the GPU was undisturbed during the run: no foreign processes, no throttling and no errors."""
        has_errors = self.xids or self.uncorrected_ecc or self.recovery_action or self.lost
        return not (self.foreign_processes or self.throttled_fraction or has_errors)


class NodeConditions(Schema):
    """State of one host and its ranks during a run. A field that is None could not be observed."""

    host: Text
    first_rank: int = Field(ge=0)
    ranks: int = Field(ge=1)
    foreign_cpu_cores: float | None = None
    memory_available_gib: float | None = None
    cpu_throttled_s: float | None = None
    oom_kills: int = Field(default=0, ge=0)
    """Number of processes that the kernel's out-of-memory killer ended in the control group of the ranks."""
    interface: Text | None = None
    """Network interface used between the hosts of the run; None on a single host."""

    def has(self, rank: int) -> bool:
        """Whether the given rank of the run was on this host."""
        return self.first_rank <= rank < self.first_rank + self.ranks


class Conditions(Schema):
    """State of the machines during one run. If there are several hosts, each figure is that of the host in the worst
    state. A field that is None could not be observed."""

    nodes: tuple[NodeConditions, ...] = Field(default=(), max_length=1000)
    """State of each host of the run; empty from workers of older releases."""
    devices: tuple[DeviceSeen, ...] = Field(default=(), max_length=_MOST_DEVICES)
    """State of each GPU of the run. If the list is too long and is cut, GPUs with something unusual come first."""
    foreign_cpu_cores: float | None = None
    """Average number of CPU cores that processes other than the ranks used during the run."""
    foreign_programs: tuple[ProgramLoad, ...] = Field(default=(), max_length=MOST_PROGRAMS)
    """Programs that used the CPU cores of `foreign_cpu_cores`, busiest first. If empty, nothing was busy, or the worker
    cannot see the processes, such as those outside of its container."""
    memory_available_gib: float | None = None
    """Host memory in GiB that was available before the ranks started, within the memory limit of the worker's control
    group."""
    cpu_throttled_s: float | None = None
    """Seconds for which threads were stopped by the CPU limit of the worker's control group, summed over CPUs."""
    rank_pace_s: tuple[float, ...] = Field(default=(), max_length=5000)
    """Seconds that each rank took for the same small calculation before training. A rank that takes much longer than
    the others would slow all of them down (a straggler)."""
    co_tenants: int = Field(default=0, ge=0)
    """Names of workers on the same host that executed something on its other devices during the run, according to the
    service's leases."""

    @classmethod
    def joined(cls, parts: Sequence["Conditions"]) -> "Conditions":
        """Return one state for several observed ones: those of several hosts, in the order of their ranks, or of
        several launches."""
        devices = [device for part in parts for device in part.devices]
        busiest = max(parts, key=lambda part: part.foreign_cpu_cores or 0.0, default=cls())
        return cls(
            nodes=tuple(node for part in parts for node in part.nodes),
            devices=tuple(sorted(devices, key=lambda device: device.is_quiet)[:_MOST_DEVICES]),
            foreign_cpu_cores=max(_without_none(part.foreign_cpu_cores for part in parts), default=None),
            foreign_programs=busiest.foreign_programs,
            memory_available_gib=min(_without_none(part.memory_available_gib for part in parts), default=None),
            cpu_throttled_s=max(_without_none(part.cpu_throttled_s for part in parts), default=None),
            rank_pace_s=tuple(pace for part in parts for pace in part.rank_pace_s),
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts of the run, without duplicates."""
        return tuple(dict.fromkeys(node.host for node in self.nodes))

    def host_of(self, rank: int) -> str | None:
        """Return the name of the host on which a rank ran; None if unknown."""
        return next((node.host for node in self.nodes if node.has(rank)), None)

    def had_oom_kill(self, rank: int) -> bool:
        """Whether the kernel's out-of-memory killer ended a process on the rank's host."""
        return any(node.oom_kills and node.has(rank) for node in self.nodes)


def _without_none(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
