"""Schemas of hardware: the cluster of a study (`Cluster`, declared or detected), and the inventory and fingerprint of a
worker."""

import json
import math
import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, ValidationInfo, field_validator

from shardtune.api_schemas.base import Dtype, Schema
from shardtune.api_schemas.machines.host_partition import HostPartition
from shardtune.api_schemas.names import ONE_LINE, DeviceName, OwnName, printable
from shardtune.api_schemas.protocol import Since

MOST_RANKS = 100_000
"""Maximum number of ranks of a cluster. The time of a search grows with the number of divisors of the number of
ranks."""
MOST_MEMORY_GIB = 1e6
"""Maximum memory of one rank in GiB."""
Fact = Annotated[str, Field(max_length=500, pattern=ONE_LINE)]
"""Text of a hardware or software fact that a machine reports about itself."""


class Cluster(Schema):
    """Hardware on which one trial runs. Memory is in GiB (2^30 bytes), bandwidth in GB/s (10^9 bytes per second)."""

    device: Literal["cuda", "cpu"] = "cuda"
    """Device type of the ranks. `cpu`: ranks are processes without an accelerator that communicate over gloo."""
    gpu: DeviceName = "cpu"
    """GPU model name as NVML prints it, such as `NVIDIA H100 80GB HBM3`; `cpu` for CPU ranks."""
    nodes: int = Field(default=1, ge=1, le=100_000)
    gpus_per_node: int = Field(ge=1, le=1024)
    """Number of GPUs per node; for CPU ranks, number of processes per node."""
    memory_gib: float = Field(gt=0, le=MOST_MEMORY_GIB)
    """Memory of one GPU in GiB. For CPU ranks the declared limit of one rank; a run above it fails as `over_limit`,
    never as OOM."""
    host_memory_gib: float = Field(gt=0, le=1e9)
    """Memory of one node in GiB, used for offloading."""
    intra_node_gb_per_s: float | None = Field(default=None, gt=0, le=1e9)
    """Bandwidth between GPUs of one node in GB/s, per GPU and direction; None if unknown."""
    inter_node_gb_per_s: float | None = Field(default=None, gt=0, le=1e9)
    """Bandwidth between nodes in GB/s, per node and direction; None if unknown."""
    host_link_gb_per_s: float | None = Field(default=None, gt=0, le=1e9)
    """Bandwidth between GPU and host memory in GB/s, per GPU and direction; None if unknown."""

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
    """Reject text that names no cluster, so that the error refers to the field and not to one of its accepted forms."""
    if isinstance(value, str) and not re.fullmatch(_SHORT_FORM, value):
        raise ValueError(
            f"cluster ({value[:100]!r}) must be 'local', a short form such as 8xh100 or 4x8xa100-80gb, or spelt out"
        )
    return value


ClusterName = Annotated[str, Field(max_length=100, pattern=_SHORT_FORM)]
"""Short name of a cluster: `local`, or the number of hosts (default 1), GPUs per host and a GPU name of the catalogue,
such as `8xh100` or `4x8xa100-80gb`."""
ClusterChoice = Annotated[
    Cluster | ClusterName, BeforeValidator(_known_form, json_schema_input_type=Cluster | ClusterName)
]
"""Cluster in a request: in full, or by its short name."""


class Fingerprint(Schema):
    """Hardware and software versions under which a measurement was made; None in a field means unknown.
    `tuner.freshness.fingerprints` decides which differences count."""

    version: Literal[1, 2, 3, 4] = 4
    """Version of the fingerprint's list of fields. Version 1 ends at `host_memory_gib`, 2 lacks `native_dtypes`, 3
    lacks `environment`; stored fingerprints and workers of earlier releases have these versions."""
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
    """Number of GPU pairs for each kind of link, in the notation of `nvidia-smi topo -m`, such as `28×NV18`."""
    pcie_gb_per_s: float | None = Field(default=None, gt=0)
    """PCIe bandwidth in GB/s per GPU and direction, from the link's generation and negotiated width."""
    sm_clock_mhz: int | None = Field(default=None, gt=0)
    """SM clock of the GPU in MHz: the application clock if one is set, else the highest."""
    memory_clock_mhz: int | None = Field(default=None, gt=0)
    power_limit_w: float | None = Field(default=None, gt=0)
    """Power limit of one GPU in watts, as set by the machine's administrator."""
    cpu_topology: Fact | None = None
    """Number of CPU sockets, cores and NUMA nodes of the host."""
    cpu_max_mhz: int | None = Field(default=None, gt=0)
    nics: Fact | None = None
    """Number, speed and kind of the active network links, such as `8×400 Gb/s InfiniBand`."""
    intra_node_gb_per_s: float | None = Field(default=None, gt=0)
    """Bus bandwidth in GB/s of the largest all-reduce measured within one node, rounded to the middle of a 10 %
    band."""
    inter_node_gb_per_s: float | None = Field(default=None, gt=0)
    """Bus bandwidth in GB/s of the largest all-reduce measured across nodes, rounded to the middle of a 10 % band."""
    native_dtypes: Fact | None = None
    """Dtypes that the device multiplies natively, such as `float32, bfloat16`; other dtypes are emulated."""
    environment: tuple[Fact, ...] | None = Field(default=None, max_length=100)
    """`NAME=value` of the worker's environment variables that affect speed or memory (`environment_settings`)."""
    overridden: tuple[Fact, ...] = Field(default=(), max_length=100)
    """Names of the fingerprint fields replaced by `--fingerprint-override`: declared, not detected."""

    def canonical_json(self) -> str:
        """Return the fingerprint as canonical JSON text. A fingerprint of an earlier version keeps its stored text, and
        therefore its key."""
        content = self.model_dump(mode="json")
        for version, field in ((3, "native_dtypes"), (4, "environment")):
            if self.version < version:
                del content[field]
        if self.version == 1:
            content = {name: content[name] for name in content if name in FIRST_FIELDS}
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    def first_version(self) -> "Fingerprint":
        """Return the fingerprint reduced to the fields of version 1, under which hardware measurements are stored."""
        return Fingerprint.model_validate({name: getattr(self, name) for name in FIRST_FIELDS} | {"version": 1})


_NAMES = tuple(Fingerprint.model_fields)
FIRST_FIELDS = _NAMES[: _NAMES.index("nodes")]
"""Names of the fingerprint fields of version 1, from which version 1 keys are computed."""
OVERRIDABLE = tuple(name for name in _NAMES if name not in ("version", "device", "environment", "overridden"))
"""Names of the fingerprint fields whose reported value a worker's operator may override, to try out the effect of a
change."""

_BAND_RATIO = 1.1


def bandwidth_band(gb_per_s: float) -> int:
    """Return the index of the 10 % wide band that contains a measured bandwidth. Adjacent bands do not count as
    different, so that noise up to 10 % is never a change and a difference over 21 % always is."""
    return round(math.log(gb_per_s) / math.log(_BAND_RATIO))


def banded(gb_per_s: float) -> float:
    """Return the middle of the 10 % band that contains a measured bandwidth, rounded to three digits."""
    return float(f"{_BAND_RATIO ** bandwidth_band(gb_per_s):.3g}")


MOST_PER_S = 1e20
"""Maximum accepted FLOP/s or bytes per second of one device, far above any real device."""


class CollectiveTime(Schema):
    """Measured time of one collective of one size, run at the same time in groups of ranks that cover the cluster."""

    operation: Literal["all_gather", "reduce_scatter", "all_reduce"]
    bytes: int = Field(gt=0, le=1 << 50)
    """Size in bytes of the collective's whole tensor, unsharded."""
    seconds: float = Field(gt=0, le=1e6)
    ranks: int | None = Field(default=None, ge=2)
    """Number of ranks in each group; None: all ranks of the cluster."""
    nodes: int = Field(default=1, ge=1)
    """Number of nodes that each group spans. If equal to the number of ranks, each rank is on a different node."""

    def bus_gb_per_s(self, ranks: int) -> float:
        """Return the bus bandwidth of the all-reduce in GB/s as nccl-tests defines it (doc/PERFORMANCE.md): the traffic
        of each rank's link, independent of the group size. `ranks`: ranks of the cluster, used if the group has all of
        them."""
        size = self.ranks or ranks
        return self.bytes / self.seconds * 2 * (size - 1) / size / 1e9


class MeasuredHardware(Schema):
    """Rates that one rank reaches while all ranks of its node are busy, measured by a worker in about a minute, or
    entered by a user."""

    bf16_flops: float = Field(gt=0, le=MOST_PER_S)
    """Rate of large bf16 matrix products of one rank in FLOP/s; a multiply-add counts as two."""
    fp32_flops: float = Field(gt=0, le=MOST_PER_S)
    copy_bytes_per_s: float = Field(gt=0, le=MOST_PER_S)
    """Bytes per second that an elementwise kernel reads and writes, on tensors far larger than any cache."""
    launch_s: float = Field(gt=0, le=1e3)
    """Seconds per operator of an eager training program on tiny tensors, module and autograd overhead included."""
    host_link_bytes_per_s: float | None = Field(default=None, gt=0, le=MOST_PER_S)
    """Bandwidth from device to pinned host memory in bytes per second; None for CPU ranks."""
    collectives: tuple[CollectiveTime, ...] = Field(default=(), max_length=200)
    """Measured times of collectives; empty for a single rank."""

    @property
    def matmul_flops(self) -> dict[Dtype, float]:
        """Rates of large matrix products in FLOP/s by dtype."""
        return {"bfloat16": self.bf16_flops, "float32": self.fp32_flops}

    def fastest_link_bytes_per_s(self, ranks: int) -> float | None:
        """Return the bus bandwidth of the fastest measured all-reduce over the given number of ranks; None if none was
        measured."""
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
    """Short part of a worker's inventory that decides which studies the worker can run; the service reads it for all
    workers at once."""

    cluster: Cluster
    """Largest cluster on which this worker can run a trial."""
    fingerprint: Fingerprint
    task_kinds: tuple[Word, ...] = Field(default=("model_summary", "trial"), max_length=50)
    """Kinds of tasks that the worker supports. The default applies to workers of older releases, which do not send the
    field."""
    own_models: tuple[OwnName, ...] = Field(default=(), max_length=1000)
    """Names of entry points in the group `shardtune.models` that the worker's owner allows."""
    own_scripts: tuple[OwnName, ...] = Field(default=(), max_length=1000)
    """Names of training scripts that the worker's owner allows."""
    adapters: tuple[Word, ...] = Field(default=(), max_length=50)
    """Kinds of adapters that the worker can train (`lora`, `last_layers`), and `qlora` if it can train LoRA on 4-bit
    weights. Workers of older releases send none, and get no study with an adapter."""
    optimizers: Annotated[tuple[Word, ...], Since(2, may_be_dropped=True)] = Field(default=(), max_length=50)
    """Kinds of optimizers whose package the worker has (`adamw-8bit`). Those of torch need none and are not listed."""
    float8: Annotated[tuple[Word, ...], Since(2, may_be_dropped=True)] = Field(default=(), max_length=50)
    """Scalings with which the worker trains in float8 (`tensorwise`, `rowwise`): it has torchao, and its GPUs have float8 or
    its CPU ranks emulate it."""
    peak_flops: float | None = None
    """Peak FLOP/s of one GPU in bf16 without sparsity, used for MFU; None if the GPU model is unknown."""
    matmul_flops: dict[Dtype, float] = {}
    """Matrix-product rates of one rank in FLOP/s by dtype, from a short test at the worker's start; a multiply-add
    counts as two. Empty: not tested."""
    measured: MeasuredHardware | None = None
    """Result of `measure-hardware` on this machine under the current fingerprint; None if not measured."""
    host_partition: HostPartition | None = None
    """Partition of a host that several workers divide (`shardtune worker --split`); None if the worker uses the host
    alone."""


class Inventory(Offer):
    """Complete description of a worker's machine and software, sent when the worker registers."""

    causal_lm_types: tuple[Word, ...] = Field(default=(), max_length=2000)
    """Values of `model_type` for which the worker's transformers can build a causal language model."""
    details: dict[str, JsonValue] = {}
    """Further facts about the worker's machine for people (host name, GPU UUIDs), at most 16 KiB; never used in
    decisions. Control characters are replaced."""

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
