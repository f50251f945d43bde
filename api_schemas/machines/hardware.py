"""Schemas of hardware: the cluster of a study (`Cluster`, declared or detected), and the inventory and fingerprint of a
worker."""

import json
import math
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, ValidationInfo, field_validator

from shardtune.api_schemas.base import Dtype, Schema
from shardtune.api_schemas.machines.host_partition import HostPartition
from shardtune.api_schemas.names import ONE_LINE, DeviceName, OwnName, printable
from shardtune.api_schemas.protocol import Since

MOST_RANKS = 100_000
"""Maximum number of ranks of a cluster. Searches take longer for numbers of ranks that have many divisors."""
MOST_MEMORY_GIB = 1e6
"""Maximum memory of one rank in GiB."""
Fact = Annotated[str, Field(max_length=500, pattern=ONE_LINE)]
"""Text in which a machine reports a fact about its hardware or software, such as the GPU's name or the driver's
version."""
MOST_OVERSUBSCRIPTION = 1000.0
"""Maximum oversubscription of leaf switches that is accepted."""


def _with_leaf(value: float | None, info: ValidationInfo) -> float | None:
    """Reject an oversubscription of leaf switches without the number of nodes below one of them."""
    # A number of nodes that was rejected itself is absent here.
    if value is not None and info.data.get("nodes_per_leaf", 0) is None:
        raise ValueError(
            f"oversubscription ({value:g}) needs nodes_per_leaf, the number of nodes below one leaf switch; state it, or "
            "leave oversubscription out"
        )
    return value


NodesPerLeaf = Annotated[int | None, Field(ge=1, le=MOST_RANKS)]
"""Number of nodes below one leaf switch of a cluster's network."""
Oversubscription = Annotated[float | None, Field(ge=1, le=MOST_OVERSUBSCRIPTION), AfterValidator(_with_leaf)]
"""Bandwidth of the nodes below a leaf switch, divided by the bandwidth of the switch's uplinks."""


class Cluster(Schema):
    """Hardware on which one trial runs. Memory is in GiB (2^30 bytes), bandwidth in GB/s (10^9 bytes per second)."""

    device: Literal["cuda", "cpu"] = "cuda"
    """Device type of the ranks. With `cpu`, ranks are processes without an accelerator, which communicate through
    gloo."""
    gpu: DeviceName = "cpu"
    """GPU model name as NVML prints it, such as `NVIDIA H100 80GB HBM3`; `cpu` for CPU ranks."""
    nodes: int = Field(default=1, ge=1, le=100_000)
    gpus_per_node: int = Field(ge=1, le=1024)
    """Number of GPUs per node; for CPU ranks, number of processes per node."""
    memory_gib: float = Field(gt=0, le=MOST_MEMORY_GIB)
    """Memory of one GPU in GiB. For CPU ranks, it is the limit declared for one rank. A rank that exceeds the limit
    fails as `over_limit`, and never as out of memory."""
    host_memory_gib: float = Field(gt=0, le=1e9)
    """Host memory of one node in GiB, which offloading uses."""
    intra_node_gb_per_s: float | None = Field(default=None, gt=0, le=1e9)
    """Bandwidth between the GPUs of one node, in GB/s per GPU and direction; None if it is not known."""
    inter_node_gb_per_s: float | None = Field(default=None, gt=0, le=1e9)
    """Bandwidth between nodes, in GB/s per node and direction; None if it is not known."""
    host_link_gb_per_s: float | None = Field(default=None, gt=0, le=1e9)
    """Bandwidth between a GPU and the host's memory, in GB/s per GPU and direction; None if it is not known."""
    nodes_per_leaf: Annotated[NodesPerLeaf, Since(2, may_be_dropped=True)] = Field(default=None, examples=[32])
    """Number of nodes below one leaf switch. In a rail-optimized network, where each GPU's port has a leaf switch of its
    own, it is the number of nodes that share these switches. None: all nodes are below one leaf switch."""
    oversubscription: Annotated[Oversubscription, Since(2, may_be_dropped=True)] = Field(default=None, examples=[2.0])
    """Oversubscription of a leaf switch: bandwidth of its nodes divided by the bandwidth of its uplinks, such as 2 for
    2:1. None: 1, so that the uplinks carry whatever the nodes send."""

    @field_validator("gpus_per_node")
    @classmethod
    def _has_countable_ranks(cls, value: int, info: ValidationInfo) -> int:
        nodes = int(info.data.get("nodes", 1))
        if nodes * value > MOST_RANKS:
            raise ValueError(
                f"gpus_per_node ({value}) × nodes ({nodes}) must be at most {MOST_RANKS} ranks; name fewer nodes"
            )
        return value

    @property
    def world_size(self) -> int:
        """Number of ranks of one trial (nodes × GPUs per node)."""
        return self.nodes * self.gpus_per_node


_SHORT_FORM = r"^(local|([0-9]+x)?[0-9]+x[A-Za-z0-9][A-Za-z0-9._-]*)$"


def _known_form(value: object) -> object:
    """Reject a text that names no cluster here, so that the error names the field and not one of the forms that the
    field accepts."""
    if isinstance(value, str) and not re.fullmatch(_SHORT_FORM, value):
        raise ValueError(
            f"cluster ({value[:100]!r}) must be 'local', a short form such as 8xh100 or 4x8xa100-80gb, or spelt out"
        )
    return value


ClusterName = Annotated[str, Field(max_length=100, pattern=_SHORT_FORM)]
"""Short name of a cluster: `local`, or number of hosts × GPUs per host × name of the GPU in the catalogue, such as
`4x8xa100-80gb`. The number of hosts may be left out for a single host (`8xh100`)."""
ClusterChoice = Annotated[
    Cluster | ClusterName, BeforeValidator(_known_form, json_schema_input_type=Cluster | ClusterName)
]
"""Cluster in a request: an object with all fields, or the short name of a cluster, such as `8xh100`."""


class Fingerprint(Schema):
    """Hardware and software versions under which a measurement was made. A field that is None is not known.
    `tuner.freshness.fingerprints` decides which differences make measurements incomparable."""

    version: Literal[1, 2, 3, 4] = 4
    """Version of the list of fields in a fingerprint. Fingerprints stored by earlier releases have fewer fields:
    version 1 ends at `host_memory_gib`, version 2 lacks `native_dtypes`, and version 3 lacks `environment`."""
    device: Literal["cuda", "cpu"]
    gpu: Fact
    gpu_count: int = Field(ge=0, le=100_000)
    gpu_memory_gib: float | None = Field(ge=0, le=1e6)
    driver: Fact | None
    cuda: Fact | None
    nccl: Fact | None
    torch: Fact | None
    deepspeed: Fact | None
    transformers: Fact | None
    python: Fact
    kernel: Fact
    cpu: Fact
    cpu_count: int = Field(ge=0, le=1_000_000)
    host_memory_gib: float = Field(ge=0, le=1e9)
    nodes: int | None = Field(default=None, ge=1)
    gpu_links: Fact | None = None
    """Number of pairs of GPUs for each kind of link between them, in the notation of `nvidia-smi topo -m`, such as
    `28×NV18`."""
    pcie_gb_per_s: float | None = Field(default=None, gt=0)
    """PCIe bandwidth in GB/s per GPU and direction, calculated from the generation and the negotiated width of the
    link."""
    sm_clock_mhz: int | None = Field(default=None, gt=0)
    """Clock of the GPU's multiprocessors (SM) in MHz: the application clock if one is set, otherwise the highest
    possible."""
    memory_clock_mhz: int | None = Field(default=None, gt=0)
    power_limit_w: float | None = Field(default=None, gt=0)
    """Power limit of one GPU in watts, as set by the machine's administrator."""
    cpu_topology: Fact | None = None
    """Number of CPU sockets, cores and NUMA nodes of the host."""
    cpu_max_mhz: int | None = Field(default=None, gt=0)
    nics: Fact | None = None
    """Number, speed and kind of the active network links, such as `8×400 Gb/s InfiniBand`."""
    intra_node_gb_per_s: float | None = Field(default=None, gt=0)
    """Bus bandwidth in GB/s of the largest all-reduce that was measured within one node. It is rounded to the middle of
    a 10 % wide band, so that noise does not change it."""
    inter_node_gb_per_s: float | None = Field(default=None, gt=0)
    """Bus bandwidth in GB/s of the largest all-reduce that was measured across nodes. It is rounded to the middle of a
    10 % wide band, so that noise does not change it."""
    native_dtypes: Fact | None = None
    """Dtypes that the device multiplies natively, such as `float32, bfloat16`; other dtypes are emulated."""
    environment: tuple[Fact, ...] | None = Field(default=None, max_length=100)
    """Environment variables of the worker that affect speed or memory, as `NAME=value` (`environment_settings` lists
    them)."""
    overridden: tuple[Fact, ...] = Field(default=(), max_length=100)
    """Names of fingerprint fields whose values were declared with `--fingerprint-override`, and not detected on the
    machine."""

    def canonical_json(self) -> str:
        """Return the fingerprint as canonical JSON text. The text of a fingerprint stored by an earlier release does
        not change, so that its key (a hash of the text) remains the same."""
        content = self.model_dump(mode="json")
        for version, field in ((3, "native_dtypes"), (4, "environment")):
            if self.version < version:
                del content[field]
        if self.version == 1:
            content = {name: content[name] for name in content if name in FIRST_FIELDS}
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    def first_version(self) -> "Fingerprint":
        """Return the fingerprint with only the fields of its version 1. Hardware measurements are stored under this
        reduced fingerprint."""
        return Fingerprint.model_validate({name: getattr(self, name) for name in FIRST_FIELDS} | {"version": 1})


_NAMES = tuple(Fingerprint.model_fields)
FIRST_FIELDS = _NAMES[: _NAMES.index("nodes")]
"""Names of the fields in version 1 of the fingerprint. Keys of that version are computed from these fields only."""
OVERRIDABLE = tuple(name for name in _NAMES if name not in ("version", "device", "environment", "overridden"))
"""Names of the fingerprint fields that the operator of a worker may override, to try out what a change of hardware or
software does."""

_BAND_RATIO = 1.1


def bandwidth_band(gb_per_s: float) -> int:
    """Return the index of the 10 % wide band that contains a measured bandwidth. Two fingerprints whose bands are the
    same or adjacent count as equal. Noise up to 10 % is therefore never a change, and a difference over 21 % always
    is."""
    return round(math.log(gb_per_s) / math.log(_BAND_RATIO))


def banded(gb_per_s: float) -> float:
    """Return the middle of the 10 % wide band that contains a measured bandwidth, rounded to three digits."""
    return float(f"{_BAND_RATIO ** bandwidth_band(gb_per_s):.3g}")


MOST_PER_S = 1e20
"""Maximum FLOP/s, or bytes per second, of one device that is accepted. It is far above any real device."""


class CollectiveTime(Schema):
    """Measured time of one collective with one tensor size. All groups of ranks, which together cover the cluster, ran
    it at the same time."""

    operation: Literal["all_gather", "reduce_scatter", "all_reduce"]
    bytes: int = Field(gt=0, le=1 << 50)
    """Size in bytes of the collective's whole tensor: the gathered one of an all-gather, and the unscattered one of a
    reduce-scatter."""
    seconds: float = Field(gt=0, le=1e6)
    ranks: int | None = Field(default=None, ge=2)
    """Number of ranks in each group that ran the collective; None if all ranks of the cluster formed one group."""
    nodes: int = Field(default=1, ge=1)
    """Number of nodes over which each group of ranks extends. If it equals the number of ranks in the group, each rank
    is on another node."""

    def bus_gb_per_s(self, ranks: int) -> float:
        """Return the bus bandwidth of the all-reduce in GB/s, as nccl-tests defines it (doc/PERFORMANCE.md): the
        traffic on each rank's link, which does not depend on the size of the group. `ranks` is the number of ranks of
        the cluster, used if one group has all of them."""
        size = self.ranks or ranks
        return self.bytes / self.seconds * 2 * (size - 1) / size / 1e9


class MeasuredHardware(Schema):
    """Rates that one rank reaches while all ranks of its node are busy. A worker measures them in about a minute, or a
    user enters them."""

    bf16_flops: float = Field(gt=0, le=MOST_PER_S)
    """Rate at which one rank computes large matrix products in bf16, in FLOP/s. A multiply-add counts as two
    operations."""
    fp32_flops: float = Field(gt=0, le=MOST_PER_S)
    copy_bytes_per_s: float = Field(gt=0, le=MOST_PER_S)
    """Rate at which an elementwise kernel reads and writes memory, in bytes per second, on tensors far larger than any
    cache."""
    launch_s: float = Field(gt=0, le=1e3)
    """Seconds that one operator takes in an eager training program on tiny tensors, with the overhead of modules and
    autograd."""
    host_link_bytes_per_s: float | None = Field(default=None, gt=0, le=MOST_PER_S)
    """Bandwidth from the device to pinned memory of the host, in bytes per second; None for CPU ranks."""
    collectives: tuple[CollectiveTime, ...] = Field(default=(), max_length=200)
    """Measured times of collectives; empty for a single rank."""

    @property
    def matmul_flops(self) -> dict[Dtype, float]:
        """Rates of large matrix products in FLOP/s by dtype."""
        return {"bfloat16": self.bf16_flops, "float32": self.fp32_flops}

    def fastest_link_bytes_per_s(self, ranks: int) -> float | None:
        """Return the bus bandwidth of the fastest measured all-reduce over the given number of ranks, in GB/s. None if
        none was measured."""
        across = [
            time for time in self.collectives if time.operation == "all_reduce" and (time.ranks or ranks) == ranks
        ]
        return max((1e9 * time.bus_gb_per_s(ranks) for time in across), default=0.0) or None


class HardwareReport(Schema):
    """Output of `shardtune measure-hardware`: the measured rates and the measured hardware."""

    cluster: Cluster
    fingerprint: Fingerprint
    measured: MeasuredHardware
    notes: tuple[str, ...] = ()
    """Problems found with the hardware, each with the likely cause."""


Word = Annotated[str, Field(max_length=100, pattern=ONE_LINE)]
MOST_DETAILS = 16 * 1024


class Offer(Schema):
    """Part of a worker's inventory that decides which studies the worker can run. The service reads it for all workers
    at once, so it is kept short."""

    cluster: Cluster
    """Largest cluster on which this worker can run a trial."""
    fingerprint: Fingerprint
    task_kinds: tuple[Word, ...] = Field(default=("model_summary", "trial"), max_length=50)
    """Kinds of tasks that the worker supports. The default is what workers of older releases support, which do not send
    the field."""
    own_models: tuple[OwnName, ...] = Field(default=(), max_length=1000)
    """Names of entry points in the group `shardtune.models` that the worker's owner allows."""
    own_scripts: tuple[OwnName, ...] = Field(default=(), max_length=1000)
    """Names of training scripts that the worker's owner allows."""
    adapters: tuple[Word, ...] = Field(default=(), max_length=50)
    """Names of what the worker can train as an adapter: `lora`, `last_layers`, and `qlora` (LoRA on 4-bit weights) or
    `dora`. Workers of older releases send no names, and get no study with an adapter."""
    optimizers: Annotated[tuple[Word, ...], Since(2, may_be_dropped=True)] = Field(default=(), max_length=50)
    """Kinds of optimizers from packages other than torch that the worker has, such as `adamw-8bit`. Optimizers that
    need only torch are not listed."""
    float8: Annotated[tuple[Word, ...], Since(2, may_be_dropped=True)] = Field(default=(), max_length=50)
    """Scalings with which the worker can train in float8 (`tensorwise`, `rowwise`). A worker that lists them has
    torchao, and its GPUs have float8 or its CPU ranks emulate it."""
    peak_flops: float | None = None
    """Peak FLOP/s of one GPU in bf16 without sparsity, by which model FLOPs utilisation (MFU) is calculated. None if
    the GPU model is not known."""
    matmul_flops: dict[Dtype, float] = {}
    """Rates of matrix products on one rank in FLOP/s, by dtype, from a short test when the worker starts. A
    multiply-add counts as two operations. Empty if not tested."""
    measured: MeasuredHardware | None = None
    """Rates that `measure-hardware` measured on this machine under its current fingerprint; None if they were not
    measured."""
    host_partition: HostPartition | None = None
    """Part of a host that belongs to this worker, if several workers divide the host (`shardtune worker --split`). None
    if the worker has the host alone."""


class Inventory(Offer):
    """Complete description of a worker's machine and software, sent when the worker registers."""

    causal_lm_types: tuple[Word, ...] = Field(default=(), max_length=2000)
    """Values of `model_type` for which the worker's transformers can build a causal language model."""
    details: dict[str, JsonValue] = {}
    """Further facts about the worker's machine for people, such as host name and GPU UUIDs, at most 16 KiB. No decision
    depends on them. Control characters are replaced."""

    @field_validator("details")
    @classmethod
    def _short(cls, details: dict[str, JsonValue]) -> dict[str, JsonValue]:
        size = len(json.dumps(details))
        if size > MOST_DETAILS:
            raise ValueError(f"details ({size} bytes of JSON) may have {MOST_DETAILS}; leave out what nobody reads")
        return {str(printable(name)): printable(value) for name, value in details.items()}

    @property
    def offer(self) -> Offer:
        """Short part of the inventory that decides which studies the worker can run."""
        return Offer.model_construct(**{name: getattr(self, name) for name in Offer.model_fields})
