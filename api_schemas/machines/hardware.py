"""Hardware of a study (`Cluster`, declared or detected) and of a worker (`Inventory`, `Fingerprint`)."""

import json
import math
import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, field_validator

from shardtune.api_schemas.base import Dtype, Schema
from shardtune.api_schemas.machines.host_partition import HostPartition
from shardtune.api_schemas.names import ONE_LINE, DeviceName, OwnName, printable

Fact = Annotated[str, Field(max_length=500, pattern=ONE_LINE)]
"""Text that a machine reports of itself."""


class Cluster(Schema):
    """The resources of one trial. Memory in GiB (2^30 bytes), bandwidth in GB/s (10^9 bytes per second)."""

    device: Literal["cuda", "cpu"] = "cuda"
    """`cpu`: ranks are processes without an accelerator, joined by gloo."""
    gpu: DeviceName = "cpu"
    """Model name as NVML prints it, such as `NVIDIA H100 80GB HBM3`; `cpu` for CPU ranks."""
    nodes: int = Field(default=1, ge=1, le=100_000)
    gpus_per_node: int = Field(ge=1, le=1024)
    """GPUs of each node; for CPU ranks, processes of each node."""
    memory_gib: float = Field(gt=0, le=1e6)
    """Memory of one GPU. For CPU ranks the declared part of one rank: going over it is `over_limit`, never an OOM."""
    host_memory_gib: float = Field(gt=0, le=1e9)
    """Memory of one node, which offloading uses."""
    intra_node_gb_per_s: float | None = Field(default=None, gt=0, le=1e9)
    """Bandwidth between GPUs of one node, per GPU and direction; None where unknown."""
    inter_node_gb_per_s: float | None = Field(default=None, gt=0, le=1e9)
    """Bandwidth between nodes, per node and direction; None where unknown."""
    host_link_gb_per_s: float | None = Field(default=None, gt=0, le=1e9)
    """Bandwidth between GPU and host memory, per GPU and direction; None where unknown."""

    @property
    def world_size(self) -> int:
        """Ranks of one trial."""
        return self.nodes * self.gpus_per_node


_SHORT_FORM = r"^(local|([0-9]+x)?[0-9]+x[A-Za-z0-9][A-Za-z0-9._-]*)$"


def _known_form(value: object) -> object:
    """Reject a word that names no cluster, so that the error is about the field and not about one of its forms."""
    if isinstance(value, str) and not re.fullmatch(_SHORT_FORM, value):
        raise ValueError(
            f"cluster ({value[:100]!r}) must be 'local', a short form such as 8xh100 or 4x8xa100-80gb, or spelt out"
        )
    return value


ClusterName = Annotated[str, Field(max_length=100, pattern=_SHORT_FORM)]
"""`local`, or hosts (1 where left out), GPUs of each and a name of the catalogue: `8xh100`, `4x8xa100-80gb`."""
ClusterChoice = Annotated[
    Cluster | ClusterName, BeforeValidator(_known_form, json_schema_input_type=Cluster | ClusterName)
]
"""A cluster as a request may name it."""


class Fingerprint(Schema):
    """Hardware and software under a measurement; None is unknown. `tuner.freshness.fingerprints` decides which
    differences count."""

    version: Literal[1, 2, 3, 4] = 4
    """Version of this list of fields. 1 ends at `host_memory_gib`, 2 lacks `native_dtypes`, 3 `environment`: stored
    fingerprints and workers of earlier releases have them."""
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
    """Number of GPU pairs by kind of link, in the words of `nvidia-smi topo -m`, such as `28×NV18`."""
    pcie_gb_per_s: float | None = Field(default=None, gt=0)
    """PCIe bandwidth per GPU and direction, by the link's generation and the width it was trained to."""
    sm_clock_mhz: int | None = Field(default=None, gt=0)
    """Clock for applications: the application clock where one is set, else the highest."""
    memory_clock_mhz: int | None = Field(default=None, gt=0)
    power_limit_w: float | None = Field(default=None, gt=0)
    """Power limit of one GPU, as set by its administrator."""
    cpu_topology: Fact | None = None
    """Sockets, cores and NUMA nodes."""
    cpu_max_mhz: int | None = Field(default=None, gt=0)
    nics: Fact | None = None
    """Count, speed and kind of the network links that are up, such as `8×400 Gb/s InfiniBand`."""
    intra_node_gb_per_s: float | None = Field(default=None, gt=0)
    """Bus bandwidth of the largest all-reduce measured within one node, as the middle of its band."""
    inter_node_gb_per_s: float | None = Field(default=None, gt=0)
    """Bus bandwidth of the largest all-reduce measured across nodes, as the middle of its band."""
    native_dtypes: Fact | None = None
    """Dtypes with units of their own for matrix products, such as `float32, bfloat16`; the device emulates the others."""
    environment: tuple[Fact, ...] | None = Field(default=None, max_length=100)
    """`NAME=value` of the worker's environment variables that change speed or memory (`environment_settings`)."""
    overridden: tuple[Fact, ...] = Field(default=(), max_length=100)
    """Fields that `--fingerprint-override` replaced: declared, not detected."""

    def canonical_json(self) -> str:
        """Return the canonical JSON. A fingerprint of an earlier version keeps the text, and so the key, that it was
        stored under."""
        content = self.model_dump(mode="json")
        for version, field in ((3, "native_dtypes"), (4, "environment")):
            if self.version < version:
                del content[field]
        if self.version == 1:
            content = {name: content[name] for name in content if name in FIRST_FIELDS}
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    def first_version(self) -> "Fingerprint":
        """Return the fields of version 1 alone, under which measurements of the hardware itself are filed."""
        return Fingerprint.model_validate({name: getattr(self, name) for name in FIRST_FIELDS} | {"version": 1})


_NAMES = tuple(Fingerprint.model_fields)
FIRST_FIELDS = _NAMES[: _NAMES.index("nodes")]
"""Fields of version 1, from which its keys are made."""
OVERRIDABLE = tuple(name for name in _NAMES if name not in ("version", "device", "environment", "overridden"))
"""Fields that a worker may be configured to report otherwise, to try out the effect of a change."""

_BAND_RATIO = 1.1


def bandwidth_band(gb_per_s: float) -> int:
    """Return the number of a measured bandwidth's band; each band is 10 % wide. Adjacent bands do not count as
    different, so that noise up to 10 % never does and a change over 21 % always does."""
    return round(math.log(gb_per_s) / math.log(_BAND_RATIO))


def banded(gb_per_s: float) -> float:
    """Return the middle of a measured bandwidth's band, to three digits."""
    return float(f"{_BAND_RATIO ** bandwidth_band(gb_per_s):.3g}")


MOST_PER_S = 1e20
"""Upper bound of FLOPs or bytes per second of one device, far beyond any."""


class CollectiveTime(Schema):
    """Time of one collective of one size within groups of ranks that cover the cluster, all groups at once."""

    operation: Literal["all_gather", "reduce_scatter", "all_reduce"]
    bytes: int = Field(gt=0, le=1 << 50)
    """Size of the whole tensor, unsharded."""
    seconds: float = Field(gt=0, le=1e6)
    ranks: int | None = Field(default=None, ge=2)
    """Ranks of a group; None: all of the cluster."""
    nodes: int = Field(default=1, ge=1)
    """Nodes that a group spans. As many ranks as nodes: one of each."""

    def bus_gb_per_s(self, ranks: int) -> float:
        """Return the bus bandwidth of an all-reduce as nccl-tests defines it (doc/PERFORMANCE.md): the traffic of
        each rank's link, whatever their number. `ranks`: ranks of the cluster, for a group of all of them."""
        size = self.ranks or ranks
        return self.bytes / self.seconds * 2 * (size - 1) / size / 1e9


class MeasuredHardware(Schema):
    """Rates that one rank reaches while all ranks of its node work: measured by a worker in a minute, or entered."""

    bf16_flops: float = Field(gt=0, le=MOST_PER_S)
    """Rate of large matrix products, per second as the others; a multiply-add is two."""
    fp32_flops: float = Field(gt=0, le=MOST_PER_S)
    copy_bytes_per_s: float = Field(gt=0, le=MOST_PER_S)
    """Bytes read and written by an elementwise kernel on tensors far larger than any cache."""
    launch_s: float = Field(gt=0, le=1e3)
    """Time of one operator of an eager training program on tiny tensors, modules and autograd included."""
    host_link_bytes_per_s: float | None = Field(default=None, gt=0, le=MOST_PER_S)
    """Bandwidth from device to pinned host memory; None for CPU ranks."""
    collectives: tuple[CollectiveTime, ...] = Field(default=(), max_length=200)
    """Times of collectives; empty for a single rank."""

    @property
    def matmul_flops(self) -> dict[Dtype, float]:
        """Rates of large matrix products by dtype."""
        return {"bfloat16": self.bf16_flops, "float32": self.fp32_flops}

    def fastest_link_bytes_per_s(self, ranks: int) -> float | None:
        """Return the bus bandwidth of the fastest all-reduce over that many ranks; None where none was measured."""
        across = [
            time for time in self.collectives if time.operation == "all_reduce" and (time.ranks or ranks) == ranks
        ]
        return max((1e9 * time.bus_gb_per_s(ranks) for time in across), default=0.0) or None


class HardwareReport(Schema):
    """Answer of `shardtune measure-hardware`: the measured rates and the hardware they belong to."""

    cluster: Cluster
    fingerprint: Fingerprint
    measured: MeasuredHardware
    notes: tuple[str, ...] = ()
    """Problems of the hardware, each with the likely cause."""


Word = Annotated[str, Field(max_length=100, pattern=ONE_LINE)]
MOST_DETAILS = 16 * 1024


class Offer(Schema):
    """Part of an inventory that decides which studies a worker can run. It is short, since it is read of all workers
    at once."""

    cluster: Cluster
    """Largest trial that this worker can run."""
    fingerprint: Fingerprint
    task_kinds: tuple[Word, ...] = Field(default=("model_summary", "trial"), max_length=50)
    """Kinds of tasks that the worker understands. The default is for workers of an older release, which do not send
    them."""
    own_models: tuple[OwnName, ...] = Field(default=(), max_length=1000)
    """Names of the entry-point group `shardtune.models` that the worker's owner allows."""
    own_scripts: tuple[OwnName, ...] = Field(default=(), max_length=1000)
    """Names of training scripts that the worker's owner allows."""
    peak_flops: float | None = None
    """Dense FLOP/s of one GPU in bf16 where its model is known, for MFU."""
    matmul_flops: dict[Dtype, float] = {}
    """Rates of matrix products of one rank, by a short test when the worker started; a multiply-add is two. Empty:
    not tested."""
    measured: MeasuredHardware | None = None
    """Result of `measure-hardware` on this machine under this fingerprint; None before it ran."""
    share: HostPartition | None = None
    """Part of a host that several workers divide among themselves (`shardtune worker --split`); None: the worker has
    the host alone."""


class Inventory(Offer):
    """Complete description that a worker sends when it registers."""

    causal_lm_types: tuple[Word, ...] = Field(default=(), max_length=2000)
    """Values of `model_type` from which its transformers builds a causal LM."""
    details: dict[str, JsonValue] = {}
    """Further facts for a person (host name, GPU UUIDs), 16 KiB at most; never used in decisions. Control characters
    are replaced."""

    @field_validator("details")
    @classmethod
    def _short(cls, details: dict[str, JsonValue]) -> dict[str, JsonValue]:
        size = len(json.dumps(details))
        if size > MOST_DETAILS:
            raise ValueError(f"details ({size} bytes of JSON) may have {MOST_DETAILS}; leave out what nobody reads")
        return {str(printable(name)): printable(value) for name, value in details.items()}

    @property
    def offer(self) -> Offer:
        """Offer: the short part of the inventory."""
        return Offer.model_construct(**{name: getattr(self, name) for name in Offer.model_fields})
