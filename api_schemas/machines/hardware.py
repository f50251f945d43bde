"""What a study runs on (`Cluster`, declared or detected) and what a worker says it has (`Inventory`, `Fingerprint`)."""

import json
import math
import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, field_validator

from shardtune.api_schemas.base import Dtype, Schema
from shardtune.api_schemas.machines.host_partition import HostPartition
from shardtune.api_schemas.names import ONE_LINE, DeviceName, OwnName, printable

Fact = Annotated[str, Field(max_length=500, pattern=ONE_LINE)]
"""What a machine says of itself."""


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
    """Memory of one GPU. For CPU ranks the declared share of one rank: going over it is `over_limit`, never an OOM."""
    host_memory_gib: float = Field(gt=0, le=1e9)
    """Memory of one node, which offloading uses."""
    intra_node_gb_per_s: float | None = Field(default=None, gt=0, le=1e9)
    """Per GPU and direction, between GPUs of one node; None where unknown."""
    inter_node_gb_per_s: float | None = Field(default=None, gt=0, le=1e9)
    """Per node and direction; None where unknown."""
    host_link_gb_per_s: float | None = Field(default=None, gt=0, le=1e9)
    """Per GPU and direction, between GPU and host memory; None where unknown."""

    @property
    def world_size(self) -> int:
        """Ranks of one trial."""
        return self.nodes * self.gpus_per_node


_SHORT_FORM = r"^(local|([0-9]+x)?[0-9]+x[A-Za-z0-9][A-Za-z0-9._-]*)$"


def _known_form(value: object) -> object:
    """Reject a word that is no cluster here, so that the error is about the field and not about one of its forms."""
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
    """The hardware and software under a measurement. Which differences count is `tuner.freshness.fingerprints`; None is unknown."""

    version: Literal[1, 2, 3, 4] = 4
    """Of this list of fields. 1 ends at `host_memory_gib`, 2 lacks `native_dtypes`, 3 `environment`: stored ones and workers
    of the releases before have them."""
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
    """How many pairs of GPUs are joined in which way, in the words of `nvidia-smi topo -m`, such as `28×NV18`."""
    pcie_gb_per_s: float | None = Field(default=None, gt=0)
    """Per GPU and direction, by the link's generation and the width it was trained to."""
    sm_clock_mhz: int | None = Field(default=None, gt=0)
    """What applications are given: the application clock where one is set, else the highest."""
    memory_clock_mhz: int | None = Field(default=None, gt=0)
    power_limit_w: float | None = Field(default=None, gt=0)
    """Of one GPU, as set by its administrator."""
    cpu_topology: Fact | None = None
    """Sockets, cores and NUMA nodes."""
    cpu_max_mhz: int | None = Field(default=None, gt=0)
    nics: Fact | None = None
    """Count, speed and kind of the network links that are up, such as `8×400 Gb/s InfiniBand`."""
    intra_node_gb_per_s: float | None = Field(default=None, gt=0)
    """Bus bandwidth of the largest all-reduce measured within one node, as the middle of its band."""
    inter_node_gb_per_s: float | None = Field(default=None, gt=0)
    """The same across nodes."""
    native_dtypes: Fact | None = None
    """Dtypes with units of their own for matrix products, such as `float32, bfloat16`; the device emulates the others."""
    environment: tuple[Fact, ...] | None = Field(default=None, max_length=100)
    """`NAME=value` of the worker's environment variables that change speed or memory (`environment_settings`)."""
    overridden: tuple[Fact, ...] = Field(default=(), max_length=100)
    """Fields that `--fingerprint-override` replaced: declared, not detected."""

    def canonical_json(self) -> str:
        """As of any schema; a fingerprint of an earlier version keeps the text, and so the key, that it was stored under."""
        content = self.model_dump(mode="json")
        for version, field in ((3, "native_dtypes"), (4, "environment")):
            if self.version < version:
                del content[field]
        if self.version == 1:
            content = {name: content[name] for name in content if name in FIRST_FIELDS}
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    def first_version(self) -> "Fingerprint":
        """The fields of version 1 alone: what measurements of the hardware itself are filed under."""
        return Fingerprint.model_validate({name: getattr(self, name) for name in FIRST_FIELDS} | {"version": 1})


_NAMES = tuple(Fingerprint.model_fields)
FIRST_FIELDS = _NAMES[: _NAMES.index("nodes")]
"""Fields of version 1, which is what its keys are made of."""
OVERRIDABLE = tuple(name for name in _NAMES if name not in ("version", "device", "environment", "overridden"))
"""Fields that a worker may be told to report otherwise, for trying out what a change causes."""

_BAND_RATIO = 1.1


def bandwidth_band(gb_per_s: float) -> int:
    """Number of the band of a measured bandwidth; each is 10 % wide. Neighbours do not count as different, so that
    noise up to 10 % never does and a change over 21 % always does.
    """
    return round(math.log(gb_per_s) / math.log(_BAND_RATIO))


def banded(gb_per_s: float) -> float:
    """The middle of a measured bandwidth's band, to three digits."""
    return float(f"{_BAND_RATIO ** bandwidth_band(gb_per_s):.3g}")


MOST_PER_S = 1e20
"""FLOPs or bytes of one device: far beyond any."""


class CollectiveTime(Schema):
    """One size of one collective within groups of ranks that cover the cluster, all of them at once."""

    operation: Literal["all_gather", "reduce_scatter", "all_reduce"]
    bytes: int = Field(gt=0, le=1 << 50)
    """Of the whole tensor, unsharded."""
    seconds: float = Field(gt=0, le=1e6)
    ranks: int | None = Field(default=None, ge=2)
    """Of a group; None: all of the cluster."""
    nodes: int = Field(default=1, ge=1)
    """That a group spans. As many ranks as nodes: one of each."""

    def bus_gb_per_s(self, ranks: int) -> float:
        """Bus bandwidth of an all-reduce as nccl-tests defines it (doc/PERFORMANCE.md): what each rank's link carries,
        whatever their number. `ranks`: of the cluster, where the group is all of it.
        """
        size = self.ranks or ranks
        return self.bytes / self.seconds * 2 * (size - 1) / size / 1e9


class MeasuredHardware(Schema):
    """What one rank reaches while all ranks of its node work: measured by a worker in a minute, or entered."""

    bf16_flops: float = Field(gt=0, le=MOST_PER_S)
    """Large matrix products; a multiply-add is two. Per second, as the others."""
    fp32_flops: float = Field(gt=0, le=MOST_PER_S)
    copy_bytes_per_s: float = Field(gt=0, le=MOST_PER_S)
    """Read and written by an elementwise kernel on tensors far larger than any cache."""
    launch_s: float = Field(gt=0, le=1e3)
    """One operator of an eager training program on tiny tensors, modules and autograd included."""
    host_link_bytes_per_s: float | None = Field(default=None, gt=0, le=MOST_PER_S)
    """Device to pinned host memory; None for CPU ranks."""
    collectives: tuple[CollectiveTime, ...] = Field(default=(), max_length=200)
    """None for a single rank."""

    @property
    def matmul_flops(self) -> dict[Dtype, float]:
        """Large matrix products by dtype."""
        return {"bfloat16": self.bf16_flops, "float32": self.fp32_flops}

    def fastest_link_bytes_per_s(self, ranks: int) -> float | None:
        """Bus bandwidth of the fastest all-reduce over so many ranks; None where none was measured."""
        across = [one for one in self.collectives if one.operation == "all_reduce" and (one.ranks or ranks) == ranks]
        return max((1e9 * one.bus_gb_per_s(ranks) for one in across), default=0.0) or None


class HardwareReport(Schema):
    """The answer of `shardtune measure-hardware`: what was measured, on what."""

    cluster: Cluster
    fingerprint: Fingerprint
    measured: MeasuredHardware
    notes: tuple[str, ...] = ()
    """What is not as it should be, with the likely cause."""


Word = Annotated[str, Field(max_length=100, pattern=ONE_LINE)]
MOST_DETAILS = 16 * 1024


class Offer(Schema):
    """What of a worker decides which studies are its own: short, since it is read of all workers at once."""

    cluster: Cluster
    """The largest trial this worker can run."""
    fingerprint: Fingerprint
    task_kinds: tuple[Word, ...] = Field(default=("model_summary", "trial"), max_length=50)
    """Kinds of tasks it understands; what a worker of an older release does not say."""
    own_models: tuple[OwnName, ...] = Field(default=(), max_length=1000)
    """Names of the entry-point group `shardtune.models` that the worker's owner allows."""
    own_scripts: tuple[OwnName, ...] = Field(default=(), max_length=1000)
    """Names of training scripts that the worker's owner allows."""
    peak_flops: float | None = None
    """Dense FLOP/s of one GPU in bf16 where its model is known, for MFU."""
    matmul_flops: dict[Dtype, float] = {}
    """Of one rank, by a short look when the worker started; a multiply-add is two. Empty: not looked."""
    measured: MeasuredHardware | None = None
    """What `measure-hardware` found here under this fingerprint; None before it ran."""
    share: HostPartition | None = None
    """Of a host that several workers divide among themselves (`shardtune worker --split`); None: the worker has it alone."""


class Inventory(Offer):
    """All that a worker says of itself when it registers."""

    causal_lm_types: tuple[Word, ...] = Field(default=(), max_length=2000)
    """`model_type` values its transformers builds a causal LM from."""
    details: dict[str, JsonValue] = {}
    """Anything else worth seeing (host name, GPU UUIDs), 16 KiB of it; never used in decisions. Control characters are
    replaced."""

    @field_validator("details")
    @classmethod
    def _short(cls, details: dict[str, JsonValue]) -> dict[str, JsonValue]:
        size = len(json.dumps(details))
        if size > MOST_DETAILS:
            raise ValueError(f"details ({size} bytes of JSON) may have {MOST_DETAILS}; leave out what nobody reads")
        return {str(printable(name)): printable(value) for name, value in details.items()}

    @property
    def offer(self) -> Offer:
        """Its short part."""
        return Offer.model_construct(**{name: getattr(self, name) for name in Offer.model_fields})
