"""Report of the visible NVIDIA GPUs as JSON, printed by a separate process, so that the agent never has a device open.

NVML opens no CUDA context. Run as `python -m shardtune.workers.machine.nvml`.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pynvml

from shardtune.workers.machine import unsupported_hardware
from shardtune.workers.machine.nvml_links import bus_id, links

_PCIE_GB_PER_S_PER_LANE = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""Bandwidth of one PCIe lane in GB/s per direction, by PCIe generation, after the losses of line coding (PCI-SIG base
specifications)."""

_MODPROBE_S = 20.0

_NO_GPU = (
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND,
)
"""NVML's error codes on a machine without a GPU. NVML returns them also for a GPU that cannot be used."""


def visible(uuids: Sequence[str], setting: str | None) -> list[int]:
    """Indices of the GPUs that CUDA_VISIBLE_DEVICES leaves visible. As in CUDA, the first entry that names no existing
    device, and all entries after it, are ignored, and a device that is named twice hides all."""
    if setting is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdecimal() and int(entry) < len(uuids):
            chosen.append(int(entry))
            continue
        matches = [index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        chosen += matches
    return chosen if len(set(chosen)) == len(chosen) else []


def report(nvml: Any = pynvml) -> dict[str, Any]:
    """Report of the driver, the visible GPUs and the reason why GPUs of the machine cannot be used. `nvml` is the
    module pynvml, or a replacement for it in tests."""
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if unsupported_hardware.hides_all(setting):
        return _report_without_gpus(nvml)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value in _NO_GPU:
            rejection = unsupported_hardware.machine(f"NVML says: {error}")
        elif (remedy := unsupported_hardware.driver_remedy(str(error))) is not None:
            rejection = f"NVML says: {error} That is, {remedy}. {unsupported_hardware.REMEDY}"
        else:
            raise
        return {"driver": None, "devices": [], "rejection": rejection}
    handles = _permitted(nvml)
    uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
    chosen = visible(uuids, setting)
    sliced = [index for index, handle in enumerate(handles) if _is_sliced(handle, nvml)]
    numbers = _cuda_numbers(handles, nvml)
    without_memory = [
        nvml.nvmlDeviceGetName(handles[index]) for index in chosen if not _has_memory(handles[index], nvml)
    ]
    if without_memory:
        return {"driver": None, "devices": [], "rejection": unsupported_hardware.shared_memory(without_memory)}
    return {
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "devices": [_device(handles[index], uuids[index], nvml) | {"index": numbers[index]} for index in chosen],
        "links": links([handles[index] for index in chosen], nvml),
        "has_slices": bool(sliced),
        "rejection": _rejection(setting, nvml.nvmlDeviceGetCount(), len(handles))
        if not chosen
        else unsupported_hardware.instance(setting)
        or unsupported_hardware.slices([uuids[index] for index in chosen if index in sliced])
        or unsupported_hardware.compute_mode({uuids[index]: _compute_mode(handles[index], nvml) for index in chosen}),
    }


def _report_without_gpus(nvml: Any) -> dict[str, Any]:
    """Report where CUDA_VISIBLE_DEVICES hides every GPU. No GPU and no driver need work then."""
    driver = None
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlInit()
        driver = nvml.nvmlSystemGetDriverVersion()
    return {"driver": driver, "devices": [], "rejection": None}


def _rejection(setting: str | None, count: int, permitted: int) -> str | None:
    """Reason why the worker uses none of the machine's `count` GPUs, of which this process may use `permitted`. None if
    the machine has no GPU."""
    if count > 0 and permitted == 0:
        return unsupported_hardware.permission(count)
    return unsupported_hardware.setting(setting, permitted)


def _permitted(nvml: Any) -> list[Any]:
    """NVML handles of the GPUs that this process is permitted to use, in the order of `nvidia-smi`."""
    # NVML counts forbidden GPUs too; CUDA does not.
    handles = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handles.append(nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NO_PERMISSION:
                raise
    return handles


def _cuda_numbers(handles: list[Any], nvml: Any) -> list[int]:
    """Number of each permitted GPU in CUDA, if CUDA_DEVICE_ORDER is PCI_BUS_ID."""
    # `nvml.h` promises no order: "The NVML index may not correlate with other APIs, such as the CUDA device index".
    try:
        addresses = [bus_id(nvml.nvmlDeviceGetPciInfo(handle)) for handle in handles]
    except nvml.NVMLError:
        return list(range(len(handles)))
    by_address = sorted(range(len(handles)), key=lambda index: addresses[index])
    return [by_address.index(index) for index in range(len(handles))]


def _is_sliced(handle: Any, nvml: Any) -> bool:
    """Whether the GPU is in MIG mode, in which CUDA can use only one slice of the GPU."""
    mode = _query(lambda: nvml.nvmlDeviceGetMigMode(handle)[0], nvml)
    return bool(mode == pynvml.NVML_DEVICE_MIG_ENABLE)


def _compute_mode(handle: Any, nvml: Any) -> int | None:
    """Compute mode of a GPU, which says how many processes CUDA lets use it; None if the GPU has none."""
    return _query(lambda: nvml.nvmlDeviceGetComputeMode(handle), nvml)


def _has_memory(handle: Any, nvml: Any) -> bool:
    """Whether the GPU has memory of its own. NVML supports no query of the memory of a GB10 (DGX Spark)."""
    try:
        _usable_bytes(handle, nvml)
    except nvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return False
    return True


def _device(handle: Any, uuid: str, nvml: Any) -> dict[str, Any]:
    generation = _query(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle), nvml)
    # The generation falls while a GPU is idle, to save power; the width does not.
    width, trained = (
        _query(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle), nvml),
        _query(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle), nvml),
    )
    milliwatts = _query(lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle), nvml)
    return {
        "uuid": uuid,
        "name": nvml.nvmlDeviceGetName(handle),
        "memory_bytes": _usable_bytes(handle, nvml),
        "pcie_gb_per_s": _pcie(generation, width),
        "pcie_link_gb_per_s": _pcie(generation, trained),
        "sm_clock_mhz": _clock(handle, nvml.NVML_CLOCK_GRAPHICS, nvml),
        "memory_clock_mhz": _clock(handle, nvml.NVML_CLOCK_MEM, nvml),
        "compute_capability": _capability(handle, nvml),
        "power_limit_w": milliwatts / 1000 if milliwatts else None,
    }


def _clock(handle: Any, kind: int, nvml: Any) -> int | None:
    """Clock in MHz at which a GPU runs programs: the one that an administrator has set, else the highest that the GPU
    has."""
    # A clock locked by `nvidia-smi -lgc` is not visible here.
    application_clock = _query(lambda: nvml.nvmlDeviceGetApplicationsClock(handle, kind), nvml)
    return application_clock or _query(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, kind), nvml) or None


def _query(call: Callable[[], int], nvml: Any) -> int | None:
    """Result of an NVML query, or None if the device does not support the query."""
    try:
        return call()
    except nvml.NVMLError:
        return None


def _capability(handle: Any, nvml: Any) -> tuple[int, int] | None:
    try:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except nvml.NVMLError:
        return None
    return int(major), int(minor)


def _usable_bytes(handle: Any, nvml: Any) -> int:
    """Total memory of a GPU in bytes as CUDA reports it. The driver's own part is subtracted if NVML reports it
    separately."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return int(memory.total - memory.reserved)
    except nvml.NVMLError:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)


def _pcie(generation: int | None, width: int | None) -> float | None:
    lane = _PCIE_GB_PER_S_PER_LANE.get(generation or 0)
    return round(lane * width, 1) if lane and width and width > 0 else None


def create_uvm_device(devices: Path = Path("/dev")) -> None:
    """Create the device file /dev/nvidia-uvm if it is missing. CUDA needs it, NVML does not.

    After a boot without the persistence daemon, CUDA's first call creates it by the setuid program nvidia-modprobe. In
    the user namespace of the fork server that program has no rights: each first call would fail, and ranks would start
    without the fork server.
    """
    program = shutil.which("nvidia-modprobe")
    if program is None or (devices / "nvidia-uvm").exists():
        return
    # Best effort: without it, CUDA's own error tells.
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [program, "-u", "-c=0"], stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=_MODPROBE_S, check=False
        )


def main() -> None:
    """Print the report on NVIDIA's driver and GPUs. On a machine with GPUs, also prepare the device files that CUDA
    needs."""
    gpu_report = report()
    if gpu_report["devices"]:
        create_uvm_device()
    print(json.dumps(gpu_report))


if __name__ == "__main__":
    main()
