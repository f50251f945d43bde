"""What a study runs on (`Cluster`, declared or detected) and what a worker says it has (`Inventory`, `Fingerprint`)."""

from typing import Literal

from pydantic import Field, JsonValue

from api_schemas.base import Schema


class Cluster(Schema):
    """The resources of one trial. Memory in GiB (2^30 bytes), bandwidth in GB/s (10^9 bytes per second)."""

    device: Literal["cuda", "cpu"] = "cuda"
    """`cpu`: ranks are processes without an accelerator, joined by gloo."""
    gpu: str = "cpu"
    """Model name as NVML prints it, such as `NVIDIA H100 80GB HBM3`; `cpu` for CPU ranks."""
    nodes: int = Field(default=1, ge=1, le=100_000)
    gpus_per_node: int = Field(ge=1, le=1024)
    """GPUs of each node; for CPU ranks, processes of each node."""
    memory_gib: float = Field(gt=0)
    """Memory of one GPU. For CPU ranks the declared share of one rank: going over it is `over_limit`, never an OOM."""
    host_memory_gib: float = Field(gt=0)
    """Memory of one node, which offloading uses."""
    intra_node_gb_per_s: float | None = Field(default=None, gt=0)
    """Per GPU and direction, between GPUs of one node; None where unknown."""
    inter_node_gb_per_s: float | None = Field(default=None, gt=0)
    """Per node and direction; None where unknown."""
    host_link_gb_per_s: float | None = Field(default=None, gt=0)
    """Per GPU and direction, between GPU and host memory; None where unknown."""

    @property
    def world_size(self) -> int:
        """Ranks of one trial."""
        return self.nodes * self.gpus_per_node


class Fingerprint(Schema):
    """The hardware and software under a measurement; measurements compare only where it is equal."""

    version: Literal[1] = 1
    """Of this list of fields."""
    device: Literal["cuda", "cpu"]
    gpu: str
    gpu_count: int
    gpu_memory_gib: float | None
    driver: str | None
    cuda: str | None
    nccl: str | None
    torch: str | None
    deepspeed: str | None
    transformers: str | None
    python: str
    kernel: str
    cpu: str
    cpu_count: int
    host_memory_gib: float


class CollectiveTime(Schema):
    """One size of one collective over all ranks of the cluster."""

    operation: Literal["all_gather", "reduce_scatter", "all_reduce"]
    bytes: int = Field(gt=0)
    """Of the whole tensor, unsharded."""
    seconds: float = Field(gt=0)


class MeasuredHardware(Schema):
    """What one rank reaches while all ranks of its node work: measured by a worker in a minute, or entered."""

    bf16_flops: float = Field(gt=0)
    """Large matrix products; a multiply-add is two. Per second, as the others."""
    fp32_flops: float = Field(gt=0)
    copy_bytes_per_s: float = Field(gt=0)
    """Read and written by an elementwise kernel on tensors far larger than any cache."""
    launch_s: float = Field(gt=0)
    """One operator of an eager training program on tiny tensors, modules and autograd included."""
    host_link_bytes_per_s: float | None = Field(default=None, gt=0)
    """Device to pinned host memory; None for CPU ranks."""
    collectives: tuple[CollectiveTime, ...] = ()
    """None for a single rank."""


class HardwareReport(Schema):
    """The answer of `shardtune measure-hardware`: what was measured, on what."""

    cluster: Cluster
    fingerprint: Fingerprint
    measured: MeasuredHardware


class Inventory(Schema):
    """What a worker offers when it registers."""

    cluster: Cluster
    """The largest trial this worker can run."""
    fingerprint: Fingerprint
    causal_lm_types: tuple[str, ...] = ()
    """`model_type` values its transformers builds a causal LM from."""
    own_models: tuple[str, ...] = ()
    """Names of the entry-point group `shardtune.models` that the worker's owner allows."""
    own_scripts: tuple[str, ...] = ()
    """Names of training scripts that the worker's owner allows."""
    nvme_path: str | None = None
    """Folder for NVMe offload, only where a probe wrote and read through DeepSpeed's asynchronous I/O."""
    peak_flops: float | None = None
    """Dense FLOP/s of one GPU in bf16 where its model is known, for MFU."""
    measured: MeasuredHardware | None = None
    """What `measure-hardware` found here under this fingerprint; None before it ran."""
    details: dict[str, JsonValue] = {}
    """Anything else worth seeing (host name, GPU UUIDs); never used in decisions."""
