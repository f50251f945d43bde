"""Catalogue of GPU models with published figures and their sources, for predictions and measurements. Peak rates are
the vendors' figures without sparsity."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

GB = 1e9


@dataclass(frozen=True)
class GpuModel:
    """GPU model with its memory and its peak rates as published. Rates are per second."""

    name: str
    aliases: tuple[str, ...]
    architecture: str
    peak_flops: float | None
    """Peak FLOP/s in bf16 without sparsity, or in fp16 if the card has no bf16. A multiply-add counts as two
    operations."""
    memory_gib: float | None
    """Memory in GiB as the device reports it. The GB of HBM that a vendor states mean 10^9 or 2^30 bytes, depending on
    the model."""
    memory_bytes_per_s: float | None
    link_bytes_per_s: float | None
    """Bandwidth of the link that joins the GPUs of one node, such as NVLink, in bytes per second, per GPU and
    direction. None if PCIe alone joins them."""
    host_link_bytes_per_s: float
    network_bytes_per_s: float
    """Network bandwidth in bytes per second, per GPU and direction, in a typical cluster of this GPU generation."""
    sources: tuple[tuple[str, str], ...] = ()
    doubts: tuple[tuple[str, str], ...] = ()
    """Figures of this GPU model that are assumed, or whose source was not checked: the name of the field, and the
    reason."""

    @property
    def peer_bytes_per_s(self) -> float:
        """Bandwidth between the GPUs of one node, in bytes per second: over NVLink or a similar link if they have one,
        otherwise through the host."""
        return self.link_bytes_per_s or self.host_link_bytes_per_s


# Vendors sell 80 and 40 "GB" of HBM that torch sees as 79.1-79.2 and 39.4 GiB: nominal GB are GiB less about 1 %.
_USABLE = 0.99
_BINARY_GIB = {"H200-SXM-141GB": 139.8, "GH200-141GB": 139.8, "H100-SXM-96GB-HBM2e-500W": 95.0, "B200-SXM-180GB": 178.4}
"""Memory in GiB, as torch prints it, of GPUs whose stated memory is in GB of 10^9 bytes; by the stated memory."""


@cache
def models() -> Mapping[str, GpuModel]:
    """Return every GPU model of the catalogue by its name."""
    data = json.loads((files("shardtune.api_schemas.machines") / "gpus.json").read_text())
    network = data["network_gbit_per_s_per_gpu"]
    gpus = [_gpu(entry, network[entry["architecture"]]) for entry in data["gpus"]]
    return {gpu.name: gpu for gpu in gpus}


def _gpu(entry: dict[str, Any], network: dict[str, Any]) -> GpuModel:
    def value(field: str, scale: float) -> float | None:
        return None if entry[field] is None else entry[field]["value"] * scale

    figures = ("peak_bf16_tflops", "memory_gb", "memory_gb_per_s", "link_gb_per_s", "host_link_gb_per_s")
    nominal = value("memory_gb", 1.0)
    return GpuModel(
        name=entry["gpu"],
        aliases=tuple(entry["aliases"]),
        architecture=entry["architecture"],
        peak_flops=value("peak_bf16_tflops", 1e12),
        memory_gib=_BINARY_GIB.get(entry["gpu"], nominal * _USABLE if nominal else None),
        memory_bytes_per_s=value("memory_gb_per_s", GB),
        link_bytes_per_s=value("link_gb_per_s", GB),
        host_link_bytes_per_s=value("host_link_gb_per_s", GB) or 12 * GB,
        network_bytes_per_s=network["value"] / 8 * GB,
        sources=tuple((name, entry[name]["source"]) for name in figures if entry[name]),
        doubts=tuple(
            (name, f"{figure['value']:g} is {figure['status']} ({figure['source']})")
            for name, figure in [*((name, entry[name]) for name in figures), ("network_gbit_per_s_per_gpu", network)]
            if figure and "status" in figure
        ),
    )
