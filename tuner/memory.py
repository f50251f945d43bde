"""A true lower bound of what one rank holds, from what each backend keeps (torch 2.13, deepspeed 0.19.8).

Counted is only what is certain; fragmentation, workspaces, the CUDA context and most activations come on top.
"""

from dataclasses import dataclass, field

from api_schemas.base import DTYPE_BYTES, GIB
from api_schemas.hardware import Cluster
from api_schemas.models import ModelProfile
from api_schemas.strategies import DdpConfig, Fsdp2Config, Offload, TrialConfig, ZeroConfig
from api_schemas.workload import Workload

Parts = dict[str, float]
"""Bytes by what they hold."""


@dataclass(frozen=True)
class Need:
    """Bytes one rank holds at the worst moment we are certain of."""

    parts: Parts
    """On the device; on CPU ranks, all of it."""
    host_bytes: float = 0.0
    """Offloaded to the memory of the node, per rank."""

    @property
    def device_bytes(self) -> float:
        """Sum of the parts."""
        return _total(self.parts)

    def text(self) -> str:
        """The sum and its parts in GiB, the largest first."""
        shown = sorted(((size, label) for label, size in self.parts.items() if size > 0), reverse=True)
        return f"{gib(self.device_bytes)} GiB: " + ", ".join(f"{label} {gib(size)}" for size, label in shown)


def gib(size: float) -> str:
    """Bytes as GiB with digits enough for a tiny model and few enough for a large one."""
    return f"{size / GIB:.1f}" if size >= 10 * GIB else f"{size / GIB:.3f}"


@dataclass(frozen=True)
class _Moments:
    """What is held all the time, and what more at each of several moments."""

    always: Parts
    loss: Parts = field(default_factory=dict)
    """When the loss of a micro batch that is not the first is known."""
    backward: Parts = field(default_factory=dict)
    step: Parts = field(default_factory=dict)
    host: Parts = field(default_factory=dict)


@dataclass(frozen=True)
class _Facts:
    """Sizes the backends' accounts share."""

    profile: ModelProfile
    workload: Workload
    cluster: Cluster
    config: TrialConfig

    @property
    def master(self) -> int:
        return DTYPE_BYTES[self.workload.recipe.master_dtype]

    @property
    def compute(self) -> int:
        return DTYPE_BYTES[self.workload.recipe.compute_dtype]

    @property
    def reduce(self) -> int:
        return DTYPE_BYTES[self.workload.recipe.reduce_dtype]

    @property
    def parameters(self) -> int:
        return self.profile.parameters

    @property
    def with_gradient(self) -> int:
        """Parameters certain to have a gradient: an expert no token chose may have none."""
        return self.profile.active_parameters if self.profile.moe_class else self.profile.parameters

    @property
    def accumulates(self) -> bool:
        return self.workload.global_batch > self.config.micro_batch * self.cluster.world_size

    @property
    def head(self) -> int:
        """Elements of the output head, where the model has one outside its blocks."""
        size = self.profile.vocab_size * self.profile.hidden_size
        return size if size <= self.profile.outside_blocks else 0

    def activations(self) -> Parts:
        """Held at the loss whatever is recomputed: each block's input, and the logits."""
        tokens = self.config.micro_batch * self.workload.sequence_length
        return {
            "inputs of the blocks": tokens * self.profile.hidden_size * len(self.profile.blocks) * self.compute,
            "logits of one micro batch": tokens * self.profile.vocab_size * self.compute,
        }


def lower_bound(config: TrialConfig, profile: ModelProfile, workload: Workload, cluster: Cluster) -> Need:
    """What one rank of this configuration holds at least."""
    facts = _Facts(profile, workload, cluster, config)
    match config.strategy:
        case DdpConfig() as ddp:
            moments = _ddp(ddp, facts)
        case ZeroConfig(stage=3) as zero:
            moments = _zero_3(zero, facts)
        case ZeroConfig() as zero:
            moments = _zero_1_2(zero, facts)
        case Fsdp2Config() as fsdp2:
            moments = _fsdp2(fsdp2, facts)
    extras: list[Parts] = [{**facts.activations(), **moments.loss}, moments.backward, moments.step]
    worst = max(extras, key=_total)
    parts = {**moments.always, **worst}
    if cluster.device == "cpu":
        # The host is the device: what is offloaded stays in the rank's own memory.
        return Need({**parts, **{f"offloaded {label}": size for label, size in moments.host.items()}})
    return Need(parts, sum(moments.host.values()))


def _total(parts: Parts) -> float:
    return sum(parts.values())


def _ddp(ddp: DdpConfig, facts: _Facts) -> _Moments:
    """fp32 parameters, gradients and two moments: 16 bytes a parameter, and 4 more for buckets that copy gradients."""
    size = facts.parameters * facts.master
    has_buckets = ddp.gradient_as_bucket_view or facts.cluster.world_size > 1
    buckets: Parts = {"reduction buckets": size} if has_buckets else {}
    gradients: Parts = {} if ddp.gradient_as_bucket_view else {"gradients": facts.with_gradient * facts.master}
    return _Moments(
        always={"parameters": size, "optimizer state": 2 * size, **buckets},
        loss=gradients if facts.accumulates else {},
        step=gradients,
    )


def _zero_1_2(zero: ZeroConfig, facts: _Facts) -> _Moments:
    """Replicated compute weights; a master partition (a copy even in fp32), its moments and its gradients.

    Stage 1 accumulates whole gradients in the accumulation dtype and reduces them after backward (stage_1_and_2.py).
    """
    share = facts.parameters / facts.cluster.world_size
    states = {"master weights": share * facts.master, "optimizer state": 2 * share * facts.master}
    partition = {"gradient partition": share * facts.reduce}
    offloaded = zero.offload_optimizer is not None
    weights: Parts = {"compute weights": facts.parameters * facts.compute}
    whole: Parts = {"gradients": facts.with_gradient * facts.reduce}
    held: Parts = {} if offloaded else (whole if zero.stage == 1 else partition)
    at_once = zero.stage == 2 or facts.accumulates or not zero.overlap_comm
    bucket = {"reduction buckets": _bucket_bytes(zero, facts)} if zero.contiguous_gradients or offloaded else {}
    return _Moments(
        always=weights if offloaded else weights | states,
        loss=held if facts.accumulates else {},
        backward=(held if at_once else {}) | bucket,
        step={} if offloaded else partition,
        host=states | partition if offloaded else {},
    )


def _bucket_bytes(zero: ZeroConfig, facts: _Facts) -> float:
    """Allocated in full at the first gradient of a backward pass, twice where reduction overlaps."""
    element = facts.reduce if zero.stage == 1 else facts.compute
    return zero.reduce_bucket_size * element * (2 if zero.overlap_comm else 1)


def _zero_3(zero: ZeroConfig, facts: _Facts) -> _Moments:
    """Everything in partitions, with one flat gradient partition and one reduction bucket from the start (stage3.py)."""
    share = facts.parameters / facts.cluster.world_size
    weights = {"compute weights": share * facts.compute}
    states: Parts = {"optimizer state": 2 * share * facts.master}
    offload = zero.offload_optimizer
    if facts.compute != facts.master or offload is not None:
        # In fp32 the partition is its own master, unless that one is moved.
        states["master weights"] = share * facts.master
    gradients = {"gradient partition": share * facts.reduce}
    always: Parts = {} if zero.offload_param is not None else dict(weights)
    host = _on_host(zero.offload_param, weights)
    if offload is None:
        always |= states | gradients
    else:
        # Partial offload splits by whole sub-groups of unequal size: nothing is certain then.
        host |= _on_host(offload, states if offload.ratio == 1.0 else {}) | gradients
    if zero.contiguous_gradients:
        always["reduction bucket"] = zero.reduce_bucket_size * facts.reduce
    if zero.zero_hpz_partition_size > 1:
        always["secondary partition (hpZ)"] = facts.parameters * facts.compute / zero.zero_hpz_partition_size
    largest = max(block.largest_parameter for block in facts.profile.blocks)
    return _Moments(
        always=always,
        loss={"gathered output head": facts.head * facts.compute},
        backward={"largest gathered parameter": largest * facts.compute},
        host=host,
    )


def _on_host(offload: Offload | None, parts: Parts) -> Parts:
    """What lands in host memory; NVMe takes it further."""
    return dict(parts) if offload is not None and offload.device == "cpu" else {}


def _fsdp2(fsdp2: Fsdp2Config, facts: _Facts) -> _Moments:
    """Sharded masters, moments and gradients; gathered compute weights of what is in use."""
    share = facts.parameters / fsdp2.dp_shard
    states = {"parameter shards": share * facts.master, "optimizer state": 2 * share * facts.master}
    gradients = {"gradient shards": share * facts.reduce}
    # One rank a shard group in fp32 computes on its only copy.
    copies = fsdp2.dp_shard > 1 or facts.compute != facts.master
    # What is in no block belongs to the root unit, gathered around the whole forward and the whole backward.
    root: Parts = {"gathered root unit": facts.profile.outside_blocks * facts.compute} if copies else {}
    kept = dict(root)
    if copies and fsdp2.reshard_after_forward is not True:
        group = 1 if fsdp2.reshard_after_forward is False else int(fsdp2.reshard_after_forward)
        in_blocks = facts.parameters - facts.profile.outside_blocks
        kept["blocks kept after forward"] = in_blocks * facts.compute / group
    whole: Parts = {}
    if facts.accumulates and fsdp2.grad_sync == "last" and facts.cluster.world_size > 1:
        whole = {"unsharded gradients": facts.with_gradient * facts.reduce}
    between = whole or (gradients if facts.accumulates and not fsdp2.cpu_offload else {})
    unit = _largest_unit(fsdp2, facts) * facts.compute if copies else 0
    backward: Parts = {"largest gathered unit": unit, **root}
    if facts.profile.moe_class is None:
        backward["gradients of the unit"] = _largest_unit(fsdp2, facts) * facts.compute
    return _Moments(
        always={} if fsdp2.cpu_offload else states,
        loss=kept | between,
        backward=backward,
        step={} if fsdp2.cpu_offload else gradients,
        host=states | gradients if fsdp2.cpu_offload else {},
    )


def _largest_unit(fsdp2: Fsdp2Config, facts: _Facts) -> int:
    """Elements of the largest run of blocks gathered together."""
    sizes = [block.parameters for block in facts.profile.blocks]
    step = fsdp2.blocks_per_unit
    return max(sum(sizes[start : start + step]) for start in range(0, len(sizes), step))
