"""Connections of GPUs in the terms of `nvidia-smi topo -m`: NV# (links of NVLink), PIX, PXB, PHB, NODE, SYS."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pynvml

_MOST_LINKS = 36
"""Number of NVLinks that are queried per GPU: NVML_NVLINK_MAX_LINKS of NVML 13. It was 18 in earlier versions, and an
H100 has 18 links. For a link that a GPU lacks, NVML returns an error, which is ignored."""
_SWITCH = "switch"


def links(handles: Sequence[Any], nvml: Any = pynvml) -> list[tuple[int, int, str]]:
    """Kind of connection for each pair of GPUs, which are named by index; empty if NVML does not report connections.
    `nvml` is the module pynvml, or a replacement for it in tests."""
    try:
        names = [bus_id(nvml.nvmlDeviceGetPciInfo(handle)) for handle in handles]
        ends = [_link_ends(handle, nvml) for handle in handles]
        return [
            (i, j, _nvlink(ends[i], ends[j], names[j]) or _pcie(handles[i], handles[j], nvml))
            for i, j in itertools.combinations(range(len(handles)), 2)
        ]
    except nvml.NVMLError:
        return []


def _nvlink(ends: Counter[str], peer_ends: Counter[str], peer: str) -> str | None:
    # Through an NVSwitch each GPU's links end at the switch, and the fewer of both reach the peer.
    count = ends[peer] or min(ends[_SWITCH], peer_ends[_SWITCH])
    return f"NV{count}" if count else None


def _pcie(first: Any, second: Any, nvml: Any) -> str:
    words = {
        nvml.NVML_TOPOLOGY_INTERNAL: "PIX",
        nvml.NVML_TOPOLOGY_SINGLE: "PIX",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        nvml.NVML_TOPOLOGY_NODE: "NODE",
        nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
    }
    level = nvml.nvmlDeviceGetTopologyCommonAncestor(first, second)
    return words.get(level, f"level {level}")


def _link_ends(handle: Any, nvml: Any) -> Counter[str]:
    """Number of active NVLinks of one GPU to each other GPU. Keys are the PCI bus ids of the other GPUs, or `switch`
    for links to an NVSwitch."""
    ends: Counter[str] = Counter()
    for link in range(_MOST_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link) != nvml.NVML_FEATURE_ENABLED:
                continue
            kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
            if kind == nvml.NVML_NVLINK_DEVICE_TYPE_GPU:
                ends[bus_id(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))] += 1
            elif kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                ends[_SWITCH] += 1
        except nvml.NVMLError:  # no such link, or a device without NVLink
            continue
    return ends


def bus_id(info: Any) -> str:
    """PCI domain, bus and device of a GPU, written as NVML writes them but equal for all of its calls. The order of these texts
    is that of PCI addresses."""
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    return text.lower().rjust(16, "0")
