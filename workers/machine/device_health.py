"""Interpretation of GPU observations: whether the worker may take work, and whether a run can be trusted. Pure
functions."""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.machines.conditions import DeviceSeen

_HARMFUL = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of nvmlClocksEventReasons that mean that the GPU runs slower than it could (nvml.h). The software power cap
(0x4) is not among them, because it acts under every full load."""
_POWER_CAP = 0x04
_BROKEN_XIDS = frozenset({46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 150, 151, 156, 158, 171, 172})
"""Xids (NVIDIA driver errors) after which the device needs a reset or a technician.

NVIDIA's catalogue (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) wants a reset or a restart after each
of them. They are: GPU timeout, double-bit ECC, halted microcontroller, row remapping failed, NVLink, fallen off the bus,
uncontained ECC, security fault, GSP timeout and error, link training, unrecovered ECC, initialization, NVLink's
microcontroller, key rotation, resource retirement, fatal timeout, and what differentiates 48: DRAM, SRAM.
"""
_NVLINK5_XIDS = frozenset({144, 145, 146, 149, 155})
"""Xids of NVLink 5 (Blackwell) that need a reset or nothing at all, by details that the driver writes into the kernel's log and
NVML does not give. 155 also stands for links that were turned off on purpose. 147 and 148 never need anything."""
_BAD_XIDS = _BROKEN_XIDS | _NVLINK5_XIDS | {63, 92, 94, 157, 159, 160, 161, 167, 169, 173, 175}
"""Xids (NVIDIA driver errors) that end a run: those of a broken device, and some that leave the device usable: remapped rows, a
high rate of corrected errors, contained ECC, memory that cannot be retired, CHI, retired channels, and errors of PCIe, SEC2,
C2C and memory for which the catalogue names no action (names: `nverror.h` of driver 595).

Other Xids are faults of a program (13, 31, 43, 45 …) or notices (162 to 166, 168, 170, 174, 176). 154 says that the recovery
action has changed, in either direction; the action itself is read from NVML.
"""
_UNSETTLED_XIDS = frozenset({109})
"""Xids that need a reset on some GPUs. 109 is the timeout of a context switch: the catalogue wants a reset, NVIDIA's device plugin
for Kubernetes takes it for a program's fault. Drivers from 570 on decide by the recovery action that they ask for ("Xid 154
linkage" in the catalogue). Where the driver tells none, the catalogue holds."""
_RECOVERY_ACTIONS = {
    1: "reset it (`nvidia-smi --gpu-reset`)",
    2: "reboot the machine",
    3: "end programs that use it, turn persistence mode off (`nvidia-smi -pm 0`), then reset it (`nvidia-smi --gpu-reset`)",
    4: "end all programs on it and reset it (`nvidia-smi --gpu-reset`)",
    5: "recover its IMEX domain",
    6: "reset its PCIe bus",
    7: "reboot the machine",
}
"""Remedies by the recovery action that the driver asks for (`nvmlDeviceGpuRecoveryAction_t`; 0 is none). The driver knows the
details of Xids, and asks also after Xids that are unknown here."""
_LOOK = "look at `nvidia-smi -q`"
_DRAIN_P2P = 3
"""Recovery action that means to end all traffic between GPUs. Once it has ended, the driver states another action."""
_SLACK_BYTES = 256 << 20
"""Bytes above its lowest observed memory use up to which a GPU counts as free. Some tolerance is needed, because the
driver itself allocates and frees memory."""


class Process(BaseModel):
    """Compute process on a GPU, with its pid and memory."""

    pid: int
    memory_bytes: int | None


class DeviceObservation(BaseModel):
    """Observation of one GPU, as `nvml_watch` prints it. Figures that the GPU does not report are None."""

    uuid: str
    lost: str | None = None
    memory_used_bytes: int = 0
    processes: list[Process] | None = None
    clock_reasons: int | None = None
    sm_clock_mhz: int | None = None
    power_mw: int | None = None
    temperature_c: int | None = None
    uncorrected_ecc: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: int | None = None
    xids: list[int] = []


class GpuObservation(BaseModel):
    """Observation of all GPUs at one time, in seconds on CLOCK_BOOTTIME."""

    at_s: float
    devices: list[DeviceObservation]


@dataclass(frozen=True)
class Fault:
    """Fault of a GPU. A run with such a fault says nothing about its configuration."""

    message: str
    excuses_failures: bool
    """Whether the fault may have caused an error of the run, an out-of-memory error included; false if the fault affects only
    the run's speed."""


def broken_devices(look: GpuObservation) -> list[str]:
    """GPUs that must not be used any more, each described with reason and remedy."""
    problems = []
    for device in look.devices:
        fatal_xids = _judged(_BROKEN_XIDS, device.xids, device.recovery_action)
        if device.lost:
            problems.append(f"GPU {device.uuid} does not answer ({device.lost}); look at `dmesg`, then reset or reboot")
        elif device.remap_failed:
            problems.append(f"GPU {device.uuid} could not remap faulty memory rows; replace it")
        elif device.remap_pending:
            problems.append(f"GPU {device.uuid} has memory rows to remap; reset it (`nvidia-smi --gpu-reset`)")
        elif fatal_xids:
            problems.append(f"GPU {device.uuid} reported Xid {fatal_xids}; reset it or take it out")
        elif device.recovery_action and device.recovery_action != _DRAIN_P2P:
            action = device.recovery_action
            problems.append(
                f"GPU {device.uuid} asks for recovery action {action}: {_RECOVERY_ACTIONS.get(action, _LOOK)}"
            )
    return problems


def _judged(bad_xids: frozenset[int], xids: Sequence[int], recovery_action: int | None) -> str:
    """Bad Xids among those that a GPU reported, as text; unsettled ones are bad if the driver tells no recovery action."""
    bad = bad_xids | _UNSETTLED_XIDS if recovery_action is None else bad_xids
    return ", ".join(map(str, sorted(bad.intersection(xids))))


def occupied_devices(look: GpuObservation, base_bytes: Mapping[str, int]) -> list[str]:
    """GPUs that are not free although no rank of this worker runs: other processes use them, memory from an earlier run
    is still in use, or the driver waits for traffic between GPUs to end."""
    problems = []
    for device in look.devices:
        over = device.memory_used_bytes - base_bytes.get(device.uuid, device.memory_used_bytes)
        if device.processes:
            problems.append(
                f"GPU {device.uuid} is used by process {_describe_processes(device.processes)}; end it, or choose other GPUs with "
                "CUDA_VISIBLE_DEVICES"
            )
        # Memory without a process: the driver is still freeing what a killed rank held.
        elif over > _SLACK_BYTES:
            problems.append(f"GPU {device.uuid} holds {over / GIB:.2f} GiB more than before the first run")
        elif device.recovery_action == _DRAIN_P2P:
            problems.append(
                f"GPU {device.uuid} waits for the end of traffic between GPUs (recovery action {_DRAIN_P2P}); "
                f"{_RECOVERY_ACTIONS[_DRAIN_P2P]}"
            )
    return problems


def summarize_devices(looks: Sequence[GpuObservation], foreign: Collection[int]) -> tuple[DeviceSeen, ...]:
    """Summary of each GPU during a run, from the last observation before the run to the last one during it. `foreign`
    contains the pids of other programs."""
    # Xids and ECC errors of a run are differences between two observations.
    if len(looks) < 2:
        return ()
    before, *during = looks
    by_uuid = [
        (first, [device for look in during for device in look.devices if device.uuid == first.uuid])
        for first in before.devices
    ]
    return tuple(_device_summary(first, later, foreign) for first, later in by_uuid if later)


def _device_summary(
    first: DeviceObservation, later: Sequence[DeviceObservation], foreign: Collection[int]
) -> DeviceSeen:
    reasons = [device.clock_reasons for device in later if device.clock_reasons is not None]
    strangers = {p.pid: p for device in later for p in device.processes or () if p.pid in foreign}
    last = later[-1]
    # Counted over the run: ECC counters only fall at a reset of the device, so old errors would blame every run.
    new_errors = None
    if first.uncorrected_ecc is not None and last.uncorrected_ecc is not None:
        new_errors = last.uncorrected_ecc - first.uncorrected_ecc
    return DeviceSeen(
        uuid=first.uuid,
        memory_before_gib=round(first.memory_used_bytes / GIB, 3),
        foreign_processes=tuple(_describe_processes([process]) for process in strangers.values()),
        throttled_fraction=_fraction(any(bits & bit for bit in _HARMFUL) for bits in reasons),
        throttle_reasons=tuple(word for bit, word in _HARMFUL.items() if any(bits & bit for bits in reasons)),
        power_capped_fraction=_fraction(bool(bits & _POWER_CAP) for bits in reasons),
        samples=len(reasons),
        sm_clock_mhz=_mean(device.sm_clock_mhz for device in later),
        power_w=_mean(device.power_mw / 1000 if device.power_mw is not None else None for device in later),
        temperature_c=max((device.temperature_c for device in later if device.temperature_c is not None), default=None),
        xids=tuple(last.xids[len(first.xids) :]),
        uncorrected_ecc=new_errors,
        recovery_action=_new_recovery_action(first, later),
        lost=last.lost[:200] if last.lost else None,
    )


def _new_recovery_action(first: DeviceObservation, later: Sequence[DeviceObservation]) -> int | None:
    """Last recovery action that the driver asked for during a run and not before it; 0 if it asked for none, None if it
    never told."""
    actions = [device.recovery_action for device in later if device.recovery_action is not None]
    if not actions:
        return None
    return next((action for action in reversed(actions) if action not in (0, first.recovery_action)), 0)


def _fraction(looks: Iterable[bool]) -> float | None:
    """Fraction of the observations in which something is true; None if there are no observations."""
    observations = list(looks)
    return sum(observations) / len(observations) if observations else None


def _mean(values: Iterable[float | None]) -> float | None:
    """Mean of the observations that report a value; None if none does."""
    known_values = [value for value in values if value is not None]
    return round(statistics.fmean(known_values), 1) if known_values else None


def find_fault(devices: Sequence[DeviceSeen]) -> Fault | None:
    """GPU fault that makes the run's result unusable; None if no GPU has such a fault."""
    # A throttled GPU is no fault: the service repeats the run once, and lets a machine that always throttles answer.
    for device in devices:
        if xids := _judged(_BAD_XIDS, device.xids, device.recovery_action):
            return Fault(f"GPU {_name_of(device)} reported Xid {xids} during the run", True)
        # The driver asks after errors that are unknown here, too.
        if action := device.recovery_action:
            asked = f"asked for recovery action {action} in the run: {_RECOVERY_ACTIONS.get(action, _LOOK)}"
            return Fault(f"GPU {_name_of(device)} {asked}", True)
        # The driver need not report an Xid for it.
        if device.lost:
            return Fault(f"GPU {_name_of(device)} did not answer after the run ({device.lost})", True)
        if device.uncorrected_ecc:
            return Fault(
                f"GPU {_name_of(device)} had {device.uncorrected_ecc} uncorrected memory errors in the run", True
            )
        if device.foreign_processes:
            names = ", ".join(device.foreign_processes)
            return Fault(f"GPU {_name_of(device)} was also used by process {names} during the run", True)
    return None


def _name_of(device: DeviceSeen) -> str:
    return device.uuid if device.host is None else f"{device.uuid} of {device.host}"


def _describe_processes(processes: Sequence[Process]) -> str:
    return ", ".join(
        f"{process.pid} ({process.memory_bytes / GIB:.2f} GiB)" if process.memory_bytes else str(process.pid)
        for process in processes
    )
