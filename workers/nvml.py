"""The visible NVIDIA GPUs, printed as JSON by a process of its own, so that the agent never holds a device.

NVML opens no CUDA context. Run as `python -m workers.nvml`.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import pynvml

_PCIE_GB_PER_S_PER_LANE = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""Per direction, after line coding (PCI-SIG base specifications)."""

_NO_GPU = (
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND,
)


def visible(uuids: Sequence[str], setting: str | None) -> list[int]:
    """Indices that CUDA_VISIBLE_DEVICES leaves; like CUDA, the first entry that names no device ends the list."""
    if setting is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdigit() and int(entry) < len(uuids):
            chosen.append(int(entry))
            continue
        matches = [index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        chosen += matches
    return chosen


def report() -> dict[str, Any]:
    """Driver and devices; no devices where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value in _NO_GPU:
            return {"driver": None, "devices": []}
        raise
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    chosen = visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return {
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "devices": [_device(handles[index], uuids[index]) for index in chosen],
    }


def _device(handle: Any, uuid: str) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "name": pynvml.nvmlDeviceGetName(handle),
        "memory_bytes": _usable_bytes(handle),
        "pcie_gb_per_s": _pcie(handle),
    }


def _usable_bytes(handle: Any) -> int:
    """What CUDA calls the device's total: without the part the driver reserves, where NVML tells it apart."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return int(memory.total - memory.reserved)
    except pynvml.NVMLError:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)


def _pcie(handle: Any) -> float | None:
    try:
        generation = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        width = pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    except pynvml.NVMLError:
        return None
    lane = _PCIE_GB_PER_S_PER_LANE.get(generation)
    return None if lane is None or width <= 0 else round(lane * width, 1)


if __name__ == "__main__":
    print(json.dumps(report()))
