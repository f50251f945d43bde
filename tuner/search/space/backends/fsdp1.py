"""Search space of FSDP1. Prefetch is a switch and a word here and a depth in FSDP2, so FSDP1's prefetch knobs have
names of their own."""

from typing import Any

from shardtune.api_schemas.divisors import divisors
from shardtune.api_schemas.knobs.declarations import knobs_by_field
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Fsdp1Config
from shardtune.api_schemas.strategies.fields.fsdp1 import ShardingStrategy
from shardtune.api_schemas.strategies.fsdp1 import HYBRID, RESHARDING, sync_policies
from shardtune.tuner.search.space.backends.record import SearchedBackend, fields_as_knobs
from shardtune.tuner.search.space.define_by_run import DefineByRun
from shardtune.tuner.search.space.legal_values import Flat
from shardtune.tuner.search.space.questions import NoLegalValue

_DEFAULT = Fsdp1Config(dp_shard=1)
_KNOB_OF = {field: knob.knob or field for field, knob in knobs_by_field(Fsdp1Config).items()}
_FIELD_OF = {knob: field for field, knob in _KNOB_OF.items()}


def _draw(drawing: DefineByRun, accumulates: bool) -> None:
    domains = drawing.domains
    strategy = _draw_mesh(drawing)
    drawing.draw("fsdp1_forward_prefetch")
    drawing.draw("fsdp1_backward_prefetch", effective=strategy in RESHARDING)
    drawing.draw("limit_all_gathers")
    compiled = bool(drawing.table["compile"])
    drawing.pick("use_orig_params", (True,) if compiled else (False, True), variant="compiled" if compiled else "")
    precision = domains.workload.precision
    offloads = domains.offloads_shards and not (accumulates and not sync_policies(True, precision))
    if offloads:
        drawing.pick("cpu_offload", (False, True))
    else:
        drawing.table["cpu_offload"] = False  # a user's pin would be illegal here
    policies = sync_policies(bool(drawing.table["cpu_offload"]), precision)
    if accumulates and domains.world > 1:
        drawing.pick("grad_sync", policies, variant="" if len(policies) > 1 else policies[0])
    else:
        drawing.table["grad_sync"] = policies[0] if accumulates else _DEFAULT.grad_sync


def _draw_mesh(drawing: DefineByRun) -> str:
    """Choose FSDP1's sharding strategy and mesh axes. The strategy NO_SHARD is not tried because it is the same as DDP,
    as PyTorch's documentation states."""
    world = drawing.domains.world
    replicates = drawing.limits.restrict("dp_replicate", divisors(world))
    hybrid = tuple(int(k) for k in replicates if 1 < int(k) < world)
    strategies: tuple[ShardingStrategy, ...] = ()
    if 1 in replicates:
        # On one rank every strategy shards nothing.
        strategies = ("FULL_SHARD", "SHARD_GRAD_OP") if world > 1 else ("FULL_SHARD",)
    strategies += HYBRID if hybrid else ()
    if not strategies:
        raise NoLegalValue("dp_replicate", divisors(world)[:-1])
    strategy = str(drawing.pick("sharding_strategy", strategies))
    if strategy in HYBRID:
        shard = int(drawing.pick("dp_shard", tuple(world // k for k in reversed(hybrid)), variant="hybrid"))
    else:
        shard = int(drawing.pick("dp_shard", (world,), variant="whole"))
    drawing.table["dp_replicate"] = max(1, world // shard)
    return strategy


def _defaults(cluster: Cluster) -> list[Fsdp1Config]:
    return [Fsdp1Config(dp_shard=cluster.world_size)]


def _to_knobs(strategy: Fsdp1Config) -> Flat:
    values = {_KNOB_OF.get(name, name): value for name, value in fields_as_knobs(strategy).items()}
    return {name: "none" if value is None else value for name, value in values.items()}


def _to_fields(table: Flat) -> dict[str, Any]:
    return {_FIELD_OF.get(name, name): None if value == "none" else value for name, value in table.items()}


BACKEND = SearchedBackend(
    config=Fsdp1Config,
    draw=_draw,
    defaults=_defaults,
    to_knobs=_to_knobs,
    to_fields=_to_fields,
)
