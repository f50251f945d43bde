"""Search space of DeepSpeed ZeRO; all sizes are numbers of elements."""

from functools import cached_property
from typing import Any

from shardtune.api_schemas.divisors import divisors
from shardtune.api_schemas.knobs.declarations import knobs_by_field
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Offload, ZeroConfig
from shardtune.api_schemas.strategies.fields import memory_budget, selective_keeps
from shardtune.api_schemas.strategies.recipe_support import deepcompile_support, fp16_support
from shardtune.tuner.search.space.backends.record import SearchedBackend, fields_as_knobs
from shardtune.tuner.search.space.define_by_run import DefineByRun
from shardtune.tuner.search.space.domains import Domains
from shardtune.tuner.search.space.legal_values import Flat

_DEVICES = ("none", "cpu")
_DEFAULT = ZeroConfig(stage=3)


class ZeroSizes:
    """Candidate sizes of ZeRO's knobs in elements, derived from the model and the number of ranks."""

    def __init__(self, domains: Domains) -> None:
        self._domains, self._model_summary = domains, domains.model_summary

    def _up_to_model(self, candidates: tuple[int, ...], default: int) -> tuple[int, ...]:
        """Candidate sizes in elements, up to the whole model's, rounded up to even numbers, as DeepSpeed requires for
        gather buckets.

        The documented default replaces the whole model's size where the default is larger, so that the space contains
        the default.
        """
        model_elements = self._model_summary.parameters
        # A size beyond the model has the same effect. DeepSpeed asserts that gather buckets are even.
        sizes = {size + size % 2 for size in candidates if 0 <= size < model_elements}
        return tuple(sorted({*sizes, default if default >= model_elements else model_elements + model_elements % 2}))

    @cached_property
    def reduce_bucket_size(self) -> tuple[int, ...]:
        """Candidate sizes of ZeRO's reduce bucket in elements: a hidden-size square, one, two and four blocks, and the
        whole model."""
        block, model_elements = self._model_summary.largest_block, self._model_summary.parameters
        sizes = (self._model_summary.hidden_size**2, block, 2 * block, 4 * block, _DEFAULT.reduce_bucket_size)
        # Buckets are allocated in full, so a size beyond the model would only cost memory.
        return tuple(sorted({min(size, model_elements) + min(size, model_elements) % 2 for size in sizes if size}))

    @cached_property
    def allgather_bucket_size(self) -> tuple[int, ...]:
        """Candidate sizes of ZeRO's all-gather bucket in elements: one block, four blocks, and the whole model."""
        block = self._model_summary.largest_block
        return self._up_to_model((block, 4 * block, _DEFAULT.allgather_bucket_size), _DEFAULT.allgather_bucket_size)

    @cached_property
    def stage3_prefetch_bucket_size(self) -> tuple[int, ...]:
        """Candidate sizes of ZeRO-3's prefetch bucket in elements: zero, a hidden-size square, one or two blocks, and
        DeepSpeed's default."""
        block, default = self._model_summary.largest_block, _DEFAULT.stage3_prefetch_bucket_size
        return self._up_to_model((0, self._model_summary.hidden_size**2, block, 2 * block, default), default)

    @cached_property
    def stage3_param_persistence_threshold(self) -> tuple[int, ...]:
        """Candidate sizes in elements below which ZeRO-3 keeps a parameter on every rank: zero, vectors (Hugging Face's
        10 × hidden), DeepSpeed's default, and up to a hidden-size square."""
        hidden = self._model_summary.hidden_size
        return tuple(sorted({0, 10 * hidden, _DEFAULT.stage3_param_persistence_threshold, hidden * hidden + 1}))

    @cached_property
    def stage3_max_live_parameters(self) -> tuple[int, ...]:
        """Candidate limits on the parameters that ZeRO-3 keeps gathered, in elements: two blocks, eight blocks, or no
        limit."""
        block = self._model_summary.largest_block
        return self._up_to_model((2 * block, 8 * block), _DEFAULT.stage3_max_live_parameters)

    @cached_property
    def stage3_max_reuse_distance(self) -> tuple[int, ...]:
        """Candidate reuse distances in elements, within which ZeRO-3 keeps a parameter gathered: zero, two blocks, and
        DeepSpeed's default, which keeps a small model gathered from forward to backward."""
        return (0, 2 * self._model_summary.largest_block, _DEFAULT.stage3_max_reuse_distance)

    @cached_property
    def sub_group_size(self) -> tuple[int, ...]:
        """Candidate sizes of ZeRO's optimizer sub-groups in elements of one rank's partition: one block, four blocks,
        and everything at once."""
        partition = -(-self._model_summary.parameters // self._domains.world)
        block_part = -(-self._model_summary.largest_block // self._domains.world)
        smaller = {size for size in (block_part, 4 * block_part, _DEFAULT.sub_group_size) if size < partition}
        return tuple(sorted(smaller | {max(_DEFAULT.sub_group_size, partition)}))

    @cached_property
    def zero_hpz_partition_size(self) -> tuple[int, ...]:
        """Candidate group sizes for ZeRO++ hpZ (secondary parameter partition) in ranks: 1 (off) and sizes smaller than
        the world; on several nodes a group stays within a node."""
        if self._domains.cluster.nodes > 1:
            return divisors(self._domains.cluster.gpus_per_node)
        return divisors(self._domains.world)[:-1] if self._domains.world >= 4 else (1,)


def _draw(drawing: DefineByRun, _accumulates: bool) -> None:
    if drawing.needs_budget:
        drawing.pick("stage", (1, 2), "budget", memory_budget.NEEDS)
    elif drawing.needs_selective:
        # `ZeroConfig.check_blocks` explains why stage 3 rules out selective checkpointing.
        stages = tuple(stage for stage in drawing.domains.zero_stages or (1, 2) if stage != 3)
        drawing.pick("stage", stages, "kept", selective_keeps.NEEDS)
    else:
        drawing.draw("stage", drawing.domains.zero_stages)
    stage, sizes = int(drawing.table["stage"]), drawing.domains.backend_sizes(ZeroSizes)
    if fp16_support.offloads_optimizer(stage, drawing.domains.workload.precision):
        drawing.draw("offload_optimizer", effective=drawing.domains.workload.optimizer.offloads)
    else:
        drawing.pick("offload_optimizer", ("none",), "resident", fp16_support.NO_ZERO_OFFLOAD)
    if deepcompile_support.obstacle(drawing.domains.workload) is not None:
        # A trial with it would be rejected; limits that leave nothing else were rejected before.
        drawing.table["deepcompile"] = False
    elif drawing.requires_deepcompile():
        _require_deepcompile(drawing)
    offloads = drawing.table["offload_optimizer"] != "none"
    drawing.draw("reduce_bucket_size", sizes.reduce_bucket_size)
    # The documented default is true at stage 3 alone. gloo reduces on the calling thread: nothing overlaps.
    drawing.pick_if("overlap_comm", drawing.domains.on_gpu and drawing.domains.world > 1, (False, True), stage == 3)
    # Stages 1 and 2 force contiguous gradients with an offloaded optimizer.
    drawing.draw("contiguous_gradients", effective=not (stage < 3 and offloads))
    drawing.draw("allgather_bucket_size", sizes.allgather_bucket_size)
    drawing.draw("round_robin_gradients")
    if stage == 3:
        _draw_stage_3(drawing)
    if offloads:
        drawing.draw("offload_optimizer_pin_memory")
        _draw_offload_ratio(drawing, stage)


def _require_deepcompile(drawing: DefineByRun) -> None:
    """Set DeepCompile, which the user's limits demand; there is no legal value where it cannot run."""
    table, others = drawing.table, knobs_by_field(ZeroConfig)["deepcompile"].when.others
    obstacles = [] if drawing.domains.on_gpu else ["it needs GPUs"]
    obstacles += [f"{name} ({table[name]}) excludes it" for name, values in others.items() if table[name] not in values]
    drawing.pick("deepcompile", (not obstacles,), "required", next(iter(obstacles), None))


def _draw_stage_3(drawing: DefineByRun) -> None:
    sizes = drawing.domains.backend_sizes(ZeroSizes)
    # `ZeroConfig.check_blocks` explains why stage 3 rules out selective checkpointing.
    drawing.narrow_checkpointing(("none", "full"), variant="stage3")
    drawing.draw("stage3_prefetch_bucket_size", sizes.stage3_prefetch_bucket_size)
    drawing.draw("stage3_param_persistence_threshold", sizes.stage3_param_persistence_threshold)
    # DeepSpeed 0.19.8 reads max_live_parameters only to cap what is prefetched.
    prefetches = int(drawing.table["stage3_prefetch_bucket_size"]) > 0
    drawing.draw("stage3_max_live_parameters", sizes.stage3_max_live_parameters, effective=prefetches)
    drawing.draw("stage3_max_reuse_distance", sizes.stage3_max_reuse_distance)
    drawing.draw("sub_group_size", sizes.sub_group_size)
    drawing.draw("zero_hpz_partition_size", sizes.zero_hpz_partition_size)
    drawing.draw("offload_param", _parameter_devices(drawing))
    drawing.draw("offload_param_pin_memory")


def _parameter_devices(drawing: DefineByRun) -> tuple[str, ...]:
    if not drawing.domains.on_gpu and "offload_param" not in drawing.limits:
        # On CPU ranks the parameters are in host memory already; only a user who asks for it gets the code path.
        return ("none",)
    return _DEVICES


def _draw_offload_ratio(drawing: DefineByRun, stage: int) -> None:
    """Choose the fraction of the optimizer state that ZeRO offloads to the CPU, where the user names the knob."""
    partition = drawing.domains.model_summary.parameters / drawing.domains.world
    # Partial offload moves whole sub-groups, so it needs at least two of them, and another device than the host.
    splits = stage == 3 and partition > int(drawing.table.get("sub_group_size", partition))
    if splits and drawing.domains.on_gpu and drawing.table["offload_optimizer"] == "cpu":
        drawing.draw("offload_optimizer_ratio")
    else:
        drawing.table["offload_optimizer_ratio"] = 1.0


def _defaults(_cluster: Cluster) -> list[ZeroConfig]:
    """Default configurations of DeepSpeed's documentation: ZeRO stages 2 and 3."""
    # DeepSpeed 0.19.8 turns overlap_comm on by default at stage 3 alone.
    return [ZeroConfig(stage=2, overlap_comm=False), ZeroConfig(stage=3)]


def _to_knobs(strategy: ZeroConfig) -> Flat:
    table = fields_as_knobs(strategy)
    for name, offload in (("offload_optimizer", strategy.offload_optimizer), ("offload_param", strategy.offload_param)):
        table |= {name: offload.device if offload else "none", f"{name}_pin_memory": (offload or Offload()).pin_memory}
    return table | {"offload_optimizer_ratio": (strategy.offload_optimizer or Offload()).ratio}


def _to_fields(table: Flat) -> dict[str, Any]:
    fields: dict[str, Any] = dict(table)
    for name in ("offload_optimizer", "offload_param"):
        device, pin = fields.pop(name, "none"), fields.pop(f"{name}_pin_memory", True)
        ratio = fields.pop(f"{name}_ratio", 1.0)
        fields[name] = None if device == "none" else Offload(device=device, pin_memory=pin, ratio=ratio)
    return fields


BACKEND = SearchedBackend(
    config=ZeroConfig,
    draw=_draw,
    defaults=_defaults,
    to_knobs=_to_knobs,
    to_fields=_to_fields,
)
