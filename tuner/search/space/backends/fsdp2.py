"""Search space of FSDP2: fully sharded, replicated or both (HSDP), over ranks or over groups of ranks that split the
model."""

from shardtune.api_schemas.divisors import divisors
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.api_schemas.strategies.fields import float8_gather
from shardtune.api_schemas.strategies.pipeline_schedules import FACTS, SCHEDULES
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.search.space.backends.record import SearchedBackend
from shardtune.tuner.search.space.define_by_run import DefineByRun
from shardtune.tuner.search.space.domains import Domains
from shardtune.tuner.search.space.questions import NoLegalValue

_DEFAULT = Fsdp2Config(dp_shard=1)


def _split(drawing: DefineByRun) -> int:
    """Choose FSDP2's number of tensor parallel ranks, then pipeline stages, then expert parallel ranks; returns the
    number of ranks that split one model."""
    context = int(drawing.table["context_parallel"])
    legal, why_not = drawing.domains.tensor_parallel(context)
    host = drawing.domains.cluster.gpus_per_node
    # Tensor parallelism sends activations in every block, so groups larger than a host are tried only where named.
    sizes = tuple(k for k in legal if host % k == 0 or drawing.limits.names("tensor_parallel", k))
    tensor = drawing.pick_if_named(
        "tensor_parallel", sizes, why_not, variant=f"context{context}" if context > 1 else ""
    )
    legal, why_not = drawing.domains.pipeline_parallel(context * tensor)
    shared = f"shared{context * tensor}" if context * tensor > 1 else ""
    stages = drawing.pick_if_named("pipeline_parallel", legal, why_not, variant=shared)
    _draw_schedule(drawing, context * tensor, stages)
    legal, why_not = drawing.domains.expert_parallel(tensor * stages, tensor)
    variant = (f"tensor{tensor}" if tensor > 1 else "") + (f"stages{stages}" if stages > 1 else "")
    drawing.pick_if_named("expert_parallel", legal, why_not, variant=variant)
    return tensor * stages


def _draw_schedule(drawing: DefineByRun, sharing: int, stages: int) -> None:
    """Choose the pipeline schedule for `stages` stages, in each of which `sharing` ranks share samples."""
    if stages == 1:
        drawing.fix("pipeline_schedule", "1f1b", ("1f1b", "gpipe"))
        drawing.table["pipeline_virtual_stages"] = 1
        return
    names = drawing.domains.pipeline_schedules(sharing, stages)
    name = str(drawing.pick("pipeline_schedule", names, variant="" if names == SCHEDULES else f"{len(names)}"))
    facts, numbers = FACTS[name], drawing.domains.virtual_stages(stages, name)
    variant = "v" if facts.is_v else f"stages{stages}" if facts.is_interleaved else ""
    drawing.pick("pipeline_virtual_stages", numbers, variant=variant)
    if facts.splits_backward:
        # `Fsdp2Config` explains why a split backward rules out selective checkpointing.
        drawing.narrow_checkpointing(("none", "full"), "split")


def _draw(drawing: DefineByRun, accumulates: bool) -> None:
    domains = drawing.domains
    split = int(drawing.table["tensor_parallel"]) * int(drawing.table["pipeline_parallel"])
    world = domains.world // split
    replicates = drawing.limits.restrict("dp_replicate", divisors(world))
    if not replicates:
        raise NoLegalValue("dp_replicate", divisors(world))
    experts = int(drawing.table["expert_parallel"])
    shards = domains.expert_shards(experts, tuple(world // int(k) for k in reversed(replicates)))
    variant = (f"split{split}" if split > 1 else "") + (f"experts{experts}" if experts > 1 else "")
    shard = int(drawing.pick("dp_shard", shards, variant=variant))
    drawing.table["dp_replicate"] = max(1, world // shard)
    gathers = _draw_float8_gather(drawing, shard)
    groups = () if gathers else domains.reshard_groups(shard)
    splits = FACTS[str(drawing.table["pipeline_schedule"])].splits_backward
    variant = "split" if splits else f"{shard}" if groups else ""
    reshard = drawing.pick("reshard_after_forward", (False,) if splits else (True, False, *groups), variant=variant)
    _draw_prefetch(drawing, shard, reshard)
    is_hybrid = shard > 1 and world // shard > 1
    if splits:
        drawing.pick("grad_sync", ("last",), variant="split")
    elif accumulates and world > 1:
        policies = ("every", "reduce_scatter", "last") if is_hybrid else ("every", "last")
        drawing.pick("grad_sync", policies, variant="hsdp" if is_hybrid else "")
    else:
        drawing.table["grad_sync"] = "every"
    drawing.draw("cpu_offload", effective=domains.offloads_shards and not gathers)


def _draw_float8_gather(drawing: DefineByRun, shard: int) -> bool:
    """Choose whether weights are gathered in float8, before the knobs that do not allow it."""
    limits, knob = drawing.limits, float8_gather.NAME
    # Limits first: an error names the reason of the first draw, and other draws may have more shards.
    if limits.requires("cpu_offload", True):
        why_not: str | None = float8_gather.OFFLOADED
    elif not limits.restrict("reshard_after_forward", (True, False)):
        why_not = float8_gather.GROUPED
    else:
        why_not = drawing.domains.why_no_float8_gather(shard)
    if why_not is None:
        return bool(drawing.pick(knob, (False, True)))
    if knob in limits:
        drawing.pick(knob, (False,), "cast", why_not)
    drawing.table[knob] = False
    return False


def _draw_prefetch(drawing: DefineByRun, shard: int, reshard: KnobValue) -> None:
    """Choose FSDP2's prefetch depths, in units ahead; backward gathers nothing when parameters stay gathered after
    forward."""
    unit = int(drawing.pick("blocks_per_unit", drawing.domains.backend_sizes(_blocks_per_unit)))
    gathers = drawing.domains.on_gpu and shard > 1
    for knob, effective in (("forward_prefetch", gathers), ("backward_prefetch", gathers and reshard is not False)):
        default_depth = int(getattr(_DEFAULT, knob))
        depths = _depths(drawing.domains, unit, default_depth)
        if effective and len(depths) > 1:
            drawing.pick(knob, depths, variant="" if len(depths) == 3 else f"{len(depths)}")
        else:
            drawing.fix(knob, default_depth, depths)


def _blocks_per_unit(domains: Domains) -> tuple[int, ...]:
    """Candidate numbers of transformer blocks in one FSDP2 unit: powers of two up to the number of blocks, at most
    8."""
    return tuple(k for k in (1, 2, 4, 8) if k == 1 or k <= len(domains.model_summary.blocks))


def _depths(domains: Domains, blocks_per_unit: int, default: int) -> tuple[int, ...]:
    """Candidate prefetch depths of 0, 1 and 2 units, as far as the model has that many further units."""
    units = -(-len(domains.model_summary.blocks) // blocks_per_unit)
    return tuple(depth for depth in (0, 1, 2) if depth < units or depth == default)


def _defaults(cluster: Cluster) -> list[Fsdp2Config]:
    return [Fsdp2Config(dp_shard=cluster.world_size)]


def _aligned(cluster: Cluster) -> list[Fsdp2Config]:
    """FSDP2 configuration that is sharded within a node and replicated across nodes, as documented for FSDP's
    HYBRID_SHARD."""
    if cluster.nodes == 1 or cluster.gpus_per_node == 1:
        return []
    # Only gradients cross the network then.
    return [Fsdp2Config(dp_replicate=cluster.nodes, dp_shard=cluster.gpus_per_node)]


BACKEND = SearchedBackend(
    config=Fsdp2Config,
    draw=_draw,
    split=_split,
    defaults=_defaults,
    aligned=_aligned,
)
