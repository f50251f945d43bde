"""GPU catalogue: find a GPU model by any of its names, and the figures of a cluster of such GPUs.

The nominal figures are in api_schemas.machines.gpus, the fractions of them achieved in training in
tuner.prediction.rates.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.machines.gpus import GB, GpuModel, models
from shardtune.api_schemas.machines.hardware import MOST_RANKS, Cluster
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes, of_architecture

HOST_GIB_PER_GPU = 256
"""GiB of host memory per GPU assumed for a cluster given in short form (such as `8xh100`): 2 TiB per 8 GPUs, as in DGX
H100."""
_VARIANTS = ("pcie", "nvl", "mig")
"""Words in a GPU's name that mark a slower or faster variant, such as `PCIe` in `H100 PCIe` and `NVL` in `H100 NVL`."""


def names() -> list[str]:
    """Names of every GPU model in the catalogue."""
    return list(models())


def find(name: str, field: str = "gpu") -> GpuModel:
    """Find a GPU in the catalogue by name, alias, or NVML product name such as `NVIDIA H100 80GB HBM3`. `field`: name of
    the request's field, for the error.

    Raises:
        ValueError: the GPU is unknown; names close matches.
    """
    gpus = models()
    folded_name = folded(name)
    for gpu in gpus.values():
        if folded_name in {folded(gpu.name), *map(folded, gpu.aliases)}:
            return gpu
    match = _by_product_name(name, gpus) or _by_short_name(folded_name, gpus)
    if match is None:
        sizes = _sizes(name)
        if len(sizes) > 1:
            raise ValueError(f"{field} ({name!r}) can be any of {', '.join(sizes)}; name one of them")
        raise ValueError(
            f"{field} ({name!r}) is not in the catalogue; use {' or '.join(_close_names(name)) or ', '.join(gpus)}, "
            "or let a worker measure it"
        )
    return match


@lru_cache(maxsize=1000)
def product(name: str) -> GpuModel | None:
    """Find the GPU that a name states, as `find` does, except that the nearest product is no answer: the SXM card for
    `NVIDIA H200 NVL`, or a whole GPU for its slice. None if the catalogue lacks the product."""
    try:
        gpu = find(name)
    except ValueError:
        return None
    if any(folded(own).startswith(folded(name)) for own in (gpu.name, *gpu.aliases)):
        return gpu
    words, named = set(_words(name)), _words(gpu.name)
    is_product = named[0] in words and all((word in words) == (word in named) for word in _VARIANTS)
    return gpu if is_product else None


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.casefold())


def suggest(name: str) -> str:
    """Return a remedy for a name that is no single GPU of the catalogue: the GPUs that it can be, or similar names."""
    sizes, close = _sizes(name), _close_names(name)
    if len(sizes) > 1:
        return f"it can be any of {', '.join(sizes)}, so name one of them"
    return f"did you mean {' or '.join(close)}?" if close else f"use one of {', '.join(models())}"


def _sizes(name: str) -> list[str]:
    """GPUs whose names begin with a name, such as the two sizes of a bare "A100"."""
    folded_name = folded(name)
    return [gpu.name for gpu in models().values() if folded_name and folded(gpu.name).startswith(folded_name)]


def _close_names(name: str) -> list[str]:
    if begun := _sizes(name):
        return begun
    known = [known for gpu in models().values() for known in (gpu.name, *gpu.aliases)]
    return difflib.get_close_matches(name, known, 3, 0.3)


def folded(name: str) -> str:
    """Return the spelling by which names of GPUs are compared: lower case, letters and digits, without the vendor's name."""
    # Letters and digits of other scripts stay, so that they match no name.
    return re.sub(r"[\W_]", "", name.lower().removeprefix("nvidia").removeprefix("amd"))


def _by_product_name(name: str, gpus: Mapping[str, GpuModel]) -> GpuModel | None:
    """Find the catalogue's GPU for an NVML product name such as `NVIDIA A100-SXM4-80GB`, `Tesla V100-SXM2-32GB`,
    `NVIDIA H100 80GB HBM3` or `NVIDIA H200`; None where the catalogue has no such GPU."""
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


def _by_short_name(folded_name: str, gpus: Mapping[str, GpuModel]) -> GpuModel | None:
    # A name that ends within that of the model is one of another product: an L40 is no L40S.
    matches = [
        gpu
        for gpu in gpus.values()
        if folded(gpu.name).startswith(folded_name) and folded_name.startswith(folded(gpu.name.split("-")[0]))
    ]
    return matches[0] if len(matches) == 1 else None


def on_cluster(cluster: Cluster) -> GpuModel:
    """Catalogue's entry for a cluster's GPU, with bandwidths and memory replaced by those that the cluster states."""
    gpu = find(cluster.gpu, "cluster.gpu")
    stated: dict[str, float] = {"memory_gib": cluster.memory_gib}
    known_fields = {"memory_gb"}
    if cluster.intra_node_gb_per_s:
        known_fields.add("link_gb_per_s")
        stated["link_bytes_per_s"] = cluster.intra_node_gb_per_s * GB
    if cluster.inter_node_gb_per_s:
        known_fields.add("network_gbit_per_s_per_gpu")
        stated["network_bytes_per_s"] = cluster.inter_node_gb_per_s * GB / cluster.gpus_per_node
    if cluster.host_link_gb_per_s:
        known_fields.add("host_link_gb_per_s")
        stated["host_link_bytes_per_s"] = cluster.host_link_gb_per_s * GB
    if cluster.nodes == 1:
        known_fields.add("network_gbit_per_s_per_gpu")
    doubts = tuple((name, reason) for name, reason in gpu.doubts if name not in known_fields)
    return replace(gpu, **stated, doubts=doubts)  # type: ignore[arg-type]


def dtypes_of(cluster: Cluster) -> DeviceDtypes:
    """Dtypes in which a cluster's devices can compute, as far as the device's name determines them."""
    if cluster.device == "cpu":
        return DeviceDtypes("this CPU", is_cpu=True)
    try:
        gpu = find(cluster.gpu)
    except ValueError:
        return DeviceDtypes(cluster.gpu, is_cpu=False)
    return DeviceDtypes(gpu.name, is_cpu=False, native=of_architecture(gpu.architecture))


# One command names a cluster once, and several parts of it ask what the name means.
@lru_cache(maxsize=256)
def parse_cluster(text: str) -> Cluster:
    """Parse a cluster's short form, such as `8xh100` or `4x8xa100-80gb` (nodes × GPUs per node × model).

    Raises:
        ValueError: the text has another form, or names an unknown GPU.
    """
    match = re.fullmatch(r"(?:(\d{1,5})x)?(\d{1,4})x([^x].*)", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        raise ValueError(f"cluster ({text!r}) must read like 8xh100 or 4x8xa100-80gb (nodes × GPUs per node × model)")
    nodes, per_node, name = int(match[1] or 1), int(match[2]), match[3]
    if nodes < 1 or per_node < 1:
        raise ValueError(f"cluster ({text!r}) must have at least one node and one GPU; for example 1x8x{name}")
    # `64xh100` means 8 nodes of 8 GPUs.
    if match[1] is None and per_node > 8 and per_node % 8 == 0:
        nodes, per_node = per_node // 8, 8
    if nodes * per_node > MOST_RANKS:
        raise ValueError(f"cluster ({text!r}) must have at most {MOST_RANKS} GPUs; name fewer nodes")
    gpu = find(name, "cluster")
    assert gpu.memory_gib is not None
    return Cluster(
        gpu=gpu.name,
        nodes=nodes,
        gpus_per_node=per_node,
        memory_gib=gpu.memory_gib,
        host_memory_gib=per_node * HOST_GIB_PER_GPU,
    )


def host_memory_note(cluster: Cluster, needed_gib: float) -> str:
    """Note on the host memory of a cluster in short form, where predicted configurations offload to the host.
    `needed_gib`: the most that one of them needs, in GiB per node.
    """
    return (
        f"host memory: {memory(cluster.host_memory_gib)} a node are assumed ({HOST_GIB_PER_GPU} GiB for each GPU), and what is "
        f"offloaded needs up to {memory(needed_gib)}; if a node has less, state the cluster with its host_memory_gib"
    )
