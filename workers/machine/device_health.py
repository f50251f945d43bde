"""What looks at the GPUs mean: whether work may be taken, and whether a run can be believed. Pure functions."""

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
"""nvmlClocksEventReasons that take speed from a healthy workload (nvml.h). The software power cap (0x4) does under every full load."""
_POWER_CAP = 0x04
_THROTTLED_SHARE = 0.1
_BROKEN_XIDS = frozenset({48, 62, 64, 74, 79, 95, 119, 120, 140})
"""After these the device needs a reset or a technician (NVIDIA's Xid catalogue): double-bit ECC, halted microcontroller,
row remapping failed, NVLink, fallen off the bus, uncontained ECC, GSP timeout and error, unrecovered ECC."""
_BAD_XIDS = _BROKEN_XIDS | {63, 92, 94}
"""Those, and the ones that end a run but not the device. Others (13, 31, 43, 45 …) are how faults of a program look."""
_SLACK_BYTES = 256 << 20
"""Over the base level: what the driver itself takes and gives back."""


class Process(BaseModel):
    """A compute process on a device."""

    pid: int
    memory_bytes: int | None


class DeviceLook(BaseModel):
    """One device at one moment, as `nvml_watch` prints it; None where it does not say."""

    uuid: str
    lost: str | None = None
    memory_used_bytes: int = 0
    processes: list[Process] | None = None
    clock_reasons: int | None = None
    uncorrected_ecc: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    xids: list[int] = []


class Look(BaseModel):
    """All devices at one moment on CLOCK_BOOTTIME."""

    at_s: float
    devices: list[DeviceLook]


@dataclass(frozen=True)
class Fault:
    """Why a run says nothing about its configuration."""

    message: str
    excuses_failures: bool
    """True: also an error of the run may come from it, an out-of-memory included. False: only its speed."""


def broken(look: Look) -> list[str]:
    """Devices that must not be used any more, with the reason and what to do."""
    found = []
    for device in look.devices:
        bad = sorted(_BROKEN_XIDS.intersection(device.xids))
        if device.lost:
            found.append(f"GPU {device.uuid} does not answer ({device.lost}); look at `dmesg`, then reset or reboot")
        elif device.remap_failed:
            found.append(f"GPU {device.uuid} could not remap faulty memory rows; replace it")
        elif device.remap_pending:
            found.append(f"GPU {device.uuid} has memory rows to remap; reset it (`nvidia-smi --gpu-reset`)")
        elif bad:
            found.append(f"GPU {device.uuid} reported Xid {', '.join(map(str, bad))}; reset it or take it out")
    return found


def occupied(look: Look, base_bytes: Mapping[str, int]) -> list[str]:
    """While none of our ranks runs: what others, or the remains of a run, hold on the devices."""
    found = []
    for device in look.devices:
        over = device.memory_used_bytes - base_bytes.get(device.uuid, device.memory_used_bytes)
        if device.processes:
            found.append(
                f"GPU {device.uuid} is used by process {_named(device.processes)}; end it, or choose other GPUs with "
                "CUDA_VISIBLE_DEVICES"
            )
        elif over > _SLACK_BYTES:
            found.append(f"GPU {device.uuid} holds {over / GIB:.2f} GiB more than before the first run")
    return found


def seen(looks: Sequence[Look], foreign: Collection[int]) -> tuple[DeviceSeen, ...]:
    """Each device over a run, from the look before it to the one after; `foreign` are pids known not to be ours."""
    if len(looks) < 2:
        return ()
    before, *during = looks
    by_uuid = [
        (first, [device for look in during for device in look.devices if device.uuid == first.uuid])
        for first in before.devices
    ]
    return tuple(_seen(first, later, foreign) for first, later in by_uuid if later)


def _seen(first: DeviceLook, later: Sequence[DeviceLook], foreign: Collection[int]) -> DeviceSeen:
    reasons = [device.clock_reasons for device in later if device.clock_reasons is not None]
    strangers = {p.pid: p for device in later for p in device.processes or () if p.pid in foreign}
    last = later[-1]
    new_errors = None
    if first.uncorrected_ecc is not None and last.uncorrected_ecc is not None:
        new_errors = last.uncorrected_ecc - first.uncorrected_ecc
    return DeviceSeen(
        uuid=first.uuid,
        memory_before_gib=round(first.memory_used_bytes / GIB, 3),
        foreign_processes=tuple(_named([process]) for process in strangers.values()),
        throttled_fraction=_share(any(bits & bit for bit in _HARMFUL) for bits in reasons),
        throttle_reasons=tuple(word for bit, word in _HARMFUL.items() if any(bits & bit for bits in reasons)),
        power_capped_fraction=_share(bool(bits & _POWER_CAP) for bits in reasons),
        xids=tuple(last.xids[len(first.xids) :]),
        uncorrected_ecc=new_errors,
    )


def _share(looks: Iterable[bool]) -> float | None:
    """None where there was no look."""
    found = list(looks)
    return sum(found) / len(found) if found else None


def fault(devices: Sequence[DeviceSeen]) -> Fault | None:
    """Whether what was seen takes the run's result away."""
    for device in devices:
        bad = sorted(_BAD_XIDS.intersection(device.xids))
        if bad:
            return Fault(f"GPU {_place(device)} reported Xid {', '.join(map(str, bad))} during the run", True)
        if device.uncorrected_ecc:
            return Fault(
                f"GPU {_place(device)} had {device.uncorrected_ecc} uncorrected memory errors in the run", True
            )
        if device.foreign_processes:
            names = ", ".join(device.foreign_processes)
            return Fault(f"GPU {_place(device)} was also used by process {names} during the run", True)
    for device in devices:
        if device.throttled_fraction is not None and device.throttled_fraction > _THROTTLED_SHARE:
            words = ", ".join(device.throttle_reasons)
            return Fault(
                f"GPU {_place(device)} was throttled in {device.throttled_fraction:.0%} of the run ({words})", False
            )
    return None


def _place(device: DeviceSeen) -> str:
    return device.uuid if device.host is None else f"{device.uuid} of {device.host}"


def _named(processes: Sequence[Process]) -> str:
    return ", ".join(
        f"{process.pid} ({process.memory_bytes / GIB:.2f} GiB)" if process.memory_bytes else str(process.pid)
        for process in processes
    )
