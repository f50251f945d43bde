"""The GPU catalogue: what is known of each model, figure by figure with its source, and how to find it by any name.

Peaks are vendors' dense figures; what is achieved of them lives in tuner.prediction.rates.
"""

import difflib
import json
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from shardtune.api_schemas.hardware import Cluster

GB = 1e9
HOST_GIB_PER_GPU = 256
"""Assumed where a cluster is named in short: 2 TiB per 8 GPUs, as in DGX H100."""


@dataclass(frozen=True)
class Gpu:
    """One accelerator model; rates in units per second."""

    name: str
    aliases: tuple[str, ...]
    architecture: str
    peak_flops: float | None
    """Dense bf16 (fp16 where the card has no bf16), multiply-add counted as two."""
    memory_gib: float | None
    """As the device reports it: the nominal GB of HBM are 10^9 bytes on some cards and 2^30 on others; see `usable_gib`."""
    memory_bytes_per_s: float | None
    link_bytes_per_s: float | None
    """Between GPUs of a node, per GPU and direction; None: PCIe only."""
    host_link_bytes_per_s: float
    network_bytes_per_s: float
    """Per GPU and direction, of a typical cluster of this generation."""
    sources: tuple[tuple[str, str], ...] = ()
    doubts: tuple[tuple[str, str], ...] = ()
    """Figures whose source was not checked, or that are assumptions: field and reason."""

    @property
    def peer_bytes_per_s(self) -> float:
        """Between GPUs of one node: NVLink or its like, else through the host."""
        return self.link_bytes_per_s or self.host_link_bytes_per_s


# Vendors sell 80 and 40 "GB" of HBM that torch sees as 79.1-79.2 and 39.4 GiB: nominal GB are GiB less about 1 %.
_USABLE = 0.99
_BINARY_GIB = {"H200-SXM-141GB": 139.8, "GH200-141GB": 139.8, "H100-SXM-96GB-HBM2e-500W": 95.0, "B200-SXM-180GB": 178.4}
"""Cards whose nominal figure is decimal; as printed by torch."""


@cache
def _load() -> dict[str, Gpu]:
    data = json.loads((files("shardtune.tuner") / "data" / "hardware.json").read_text())
    network = data["network_gbit_per_s_per_gpu"]
    gpus = [_gpu(entry, network[entry["architecture"]]) for entry in data["gpus"]]
    return {gpu.name: gpu for gpu in gpus}


def _gpu(entry: dict[str, Any], network: dict[str, Any]) -> Gpu:
    def value(field: str, scale: float) -> float | None:
        return None if entry[field] is None else entry[field]["value"] * scale

    figures = ("peak_bf16_tflops", "memory_gb", "memory_gb_per_s", "link_gb_per_s", "host_link_gb_per_s")
    nominal = value("memory_gb", 1.0)
    return Gpu(
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


def names() -> list[str]:
    """Every model in the catalogue."""
    return list(_load())


def find(name: str) -> Gpu:
    """The GPU of that name, alias, or NVML product name such as `NVIDIA H100 80GB HBM3`.

    Raises:
        ValueError: unknown, with close matches.
    """
    gpus = _load()
    wanted = _fold(name)
    for gpu in gpus.values():
        if wanted in {_fold(gpu.name), *map(_fold, gpu.aliases)}:
            return gpu
    found = _by_product_name(name, gpus) or _by_short_name(wanted, gpus)
    if found is None:
        sizes = [gpu.name for gpu in gpus.values() if _fold(gpu.name).startswith(wanted)] if wanted else []
        if sizes:
            raise ValueError(f"gpu ({name!r}) can be any of {', '.join(sizes)}; name one of them")
        close = difflib.get_close_matches(name, [n for g in gpus.values() for n in (g.name, *g.aliases)], 3, 0.3)
        raise ValueError(
            f"gpu ({name!r}) is not in the catalogue; use {' or '.join(close) or ', '.join(gpus)}, "
            "or let a worker measure it"
        )
    return found


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("nvidia").removeprefix("amd"))


def _by_product_name(name: str, gpus: dict[str, Gpu]) -> Gpu | None:
    """NVML writes `NVIDIA A100-SXM4-80GB`, `Tesla V100-SXM2-32GB`, `NVIDIA H100 80GB HBM3`, `NVIDIA H200`."""
    words = re.findall(r"[a-z]*\d+[a-z]*|pcie|nvl|sxm\d?", name.lower())
    ranked = [(float(sum(word in gpu.name.lower() for word in words)), gpu) for gpu in gpus.values()]
    model = next((word for word in words if re.fullmatch(r"(gh|gb|mi|[a-z])\d{1,3}[a-z]?", word)), None)
    if model is None:
        return None
    ranked = [(score, gpu) for score, gpu in ranked if gpu.name.lower().split("-")[0] == model]
    if "pcie" not in words:
        ranked = [(score - 0.5 * ("PCIe" in gpu.name), gpu) for score, gpu in ranked]
    best = [gpu for score, gpu in ranked if score == max(score for score, _ in ranked)]
    return best[0] if len(best) == 1 else None  # a bare "A100" has two sizes


def _by_short_name(wanted: str, gpus: dict[str, Gpu]) -> Gpu | None:
    matches = [gpu for gpu in gpus.values() if _fold(gpu.name).startswith(wanted)]
    return matches[0] if len(matches) == 1 else None


def on_cluster(cluster: Cluster) -> Gpu:
    """The cluster's GPU, with the cluster's own bandwidths and memory where it states them."""
    gpu = find(cluster.gpu)
    stated: dict[str, float] = {"memory_gib": cluster.memory_gib}
    settled = {"memory_gb"}
    if cluster.intra_node_gb_per_s:
        settled.add("link_gb_per_s")
        stated["link_bytes_per_s"] = cluster.intra_node_gb_per_s * GB
    if cluster.inter_node_gb_per_s:
        settled.add("network_gbit_per_s_per_gpu")
        stated["network_bytes_per_s"] = cluster.inter_node_gb_per_s * GB / cluster.gpus_per_node
    if cluster.host_link_gb_per_s:
        settled.add("host_link_gb_per_s")
        stated["host_link_bytes_per_s"] = cluster.host_link_gb_per_s * GB
    if cluster.nodes == 1:
        settled.add("network_gbit_per_s_per_gpu")
    doubts = tuple((name, reason) for name, reason in gpu.doubts if name not in settled)
    return replace(gpu, **stated, doubts=doubts)  # type: ignore[arg-type]


def parse_cluster(text: str) -> Cluster:
    """Read `8xh100`, `4x8xa100-80gb` (nodes × GPUs per node × model) into a cluster.

    Raises:
        ValueError: not of that form, or an unknown GPU.
    """
    match = re.fullmatch(r"(?:(\d{1,5})x)?(\d{1,4})x([^x].*)", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"cluster ({text!r}) must read like 8xh100 or 4x8xa100-80gb (nodes × GPUs per node × model)")
    nodes, per_node, name = int(match[1] or 1), int(match[2]), match[3]
    if nodes < 1 or per_node < 1:
        raise ValueError(f"cluster ({text!r}) must have at least one node and one GPU; for example 1x8x{name}")
    if match[1] is None and per_node > 8 and per_node % 8 == 0:
        nodes, per_node = per_node // 8, 8
    gpu = find(name)
    assert gpu.memory_gib is not None
    return Cluster(
        gpu=gpu.name,
        nodes=nodes,
        gpus_per_node=per_node,
        memory_gib=gpu.memory_gib,
        host_memory_gib=per_node * HOST_GIB_PER_GPU,
    )
