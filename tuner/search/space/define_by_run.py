"""Which knob exists when: one walk draws a configuration knob by knob, so a condition is an `if` over what was drawn before.

Sampling, enumeration, membership and reading a configuration are the same walk with different answers.
"""

from collections.abc import Callable
from dataclasses import dataclass

from shardtune.api_schemas.search_space import KnobValue
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, ZeroConfig
from shardtune.api_schemas.strategies.fsdp1 import HYBRID, RESHARDING, ShardingStrategy, sync_policies
from shardtune.tuner.search.space.domains import Domains, divisors
from shardtune.tuner.search.space.flat import Flat
from shardtune.tuner.search.space.knobs import KNOBS
from shardtune.tuner.search.space.limits import KnobLimits


@dataclass(frozen=True)
class Question:
    """One knob to decide."""

    knob: str
    param: str
    """Name for the sampler; the same name always has the same candidate values."""
    values: tuple[KnobValue, ...]


Answer = Callable[[Question], KnobValue]


class NoLegalValue(Exception):
    """The user's limits leave a knob without a value on this path."""

    def __init__(self, knob: str, candidates: tuple[KnobValue, ...]) -> None:
        super().__init__(knob)
        self.knob, self.candidates = knob, candidates


class DefineByRun:
    """One path through the space."""

    def __init__(self, domains: Domains, limits: KnobLimits, answer: Answer) -> None:
        self.domains, self.limits, self.answer = domains, limits, answer
        self.table: Flat = {}

    def run(self) -> Flat:
        """Draw every knob that has an effect; the others get the value they are held at.

        Raises:
            DeadEnd: nothing legal is left for a knob on this path.
        """
        backend = self.pick("backend", self.limits.backends)
        micro_batch = int(self.pick("micro_batch", self.domains.micro_batches))
        self._pick_if("compile", self.limits.allow_compile, (False, True), False)
        accumulates = self.domains.accumulation(micro_batch) > 1
        draw = {"ddp": self._ddp, "zero": self._zero, "fsdp2": self._fsdp2, "fsdp1": self._fsdp1}
        draw[str(backend)](accumulates)
        self._checkpointing()
        return self.table

    def pick(self, knob: str, candidates: tuple[KnobValue, ...], at: str = "") -> KnobValue:
        """Decide a knob among the candidates the user's limits leave. `at` tells apart different candidate sets."""
        values = self.limits.restrict(knob, candidates)
        if not values:
            raise NoLegalValue(knob, candidates)
        backend = self.table.get("backend")
        own = knob in ("backend", "micro_batch", "activation_checkpointing", "compile")
        param = (knob if own else f"{backend}.{knob}") + (f"@{at}" if at else "")
        self.table[knob] = self.answer(Question(knob, param, values))
        return self.table[knob]

    def fix(self, knob: str, value: KnobValue, candidates: tuple[KnobValue, ...]) -> None:
        """Set a knob that does nothing here: the user's pin where that is legal, or this value."""
        pin = self.limits.pinned(knob, value)
        self.table[knob] = pin if KNOBS[knob].open or pin in candidates else value

    def _pick_if(
        self, knob: str, effective: bool, candidates: tuple[KnobValue, ...], otherwise: KnobValue
    ) -> KnobValue:
        if effective:
            return self.pick(knob, candidates)
        self.fix(knob, otherwise, candidates)
        return self.table[knob]

    def _checkpointing(self) -> None:
        """Selective checkpointing does not work at ZeRO stage 3: `TrialConfig` says why."""
        if self.table.get("stage") == 3:
            self.pick("activation_checkpointing", ("none", "full"), at="stage3")
        else:
            self.pick("activation_checkpointing", ("none", "selective", "full"))

    def _ddp(self, accumulates: bool) -> None:
        several, default = self.domains.world > 1, DdpConfig()
        self._pick_if("bucket_cap_mb", several, self.domains.bucket_cap_mb, default.bucket_cap_mb)
        self.pick("gradient_as_bucket_view", (False, True))
        self._pick_if("grad_sync", several and accumulates, ("every", "last"), default.grad_sync)
        if accumulates:
            # torch 2.13: static_graph under no_sync skips reductions, so a pin is not honoured here.
            self.table["static_graph"] = False
        else:
            self.pick("static_graph", (False, True))

    def _zero(self, accumulates: bool) -> None:
        stage = int(self.pick("stage", (1, 2, 3)))
        domains, default = self.domains, ZeroConfig(stage=3)
        device = str(self.pick("offload_optimizer", self._offload_devices(stage)))
        self.pick("reduce_bucket_size", domains.reduce_bucket_size)
        # Its documented default is true at stage 3 alone. gloo reduces on the calling thread: nothing overlaps.
        self._pick_if("overlap_comm", domains.on_gpu and domains.world > 1, (False, True), stage == 3)
        # Stages 1 and 2 force it with an offloaded optimizer.
        forced = stage < 3 and device != "none"
        self._pick_if("contiguous_gradients", not forced, (True, False), True)
        if stage < 3:
            several = domains.world > 1
            size = domains.allgather_bucket_size
            self._pick_if("allgather_bucket_size", several, size, default.allgather_bucket_size)
            self._pick_if("round_robin_gradients", several, (False, True), False)
        else:
            self._stage_3()
        if device != "none":
            self._pick_if("offload_optimizer_pin_memory", domains.on_gpu, (True, False), True)
            self._offload_ratio(stage)

    def _offload_devices(self, stage: int) -> tuple[str, ...]:
        return ("none", "cpu", "nvme") if stage == 3 and self.domains.nvme else ("none", "cpu")

    def _stage_3(self) -> None:
        domains, default = self.domains, ZeroConfig(stage=3)
        prefetch = self.pick("stage3_prefetch_bucket_size", domains.stage3_prefetch_bucket_size)
        self.pick("stage3_param_persistence_threshold", domains.stage3_param_persistence_threshold)
        # DeepSpeed 0.19.8 reads max_live_parameters only to cap what is prefetched.
        live = domains.stage3_max_live_parameters
        self._pick_if("stage3_max_live_parameters", int(prefetch) > 0, live, default.stage3_max_live_parameters)
        self.pick("stage3_max_reuse_distance", domains.stage3_max_reuse_distance)
        self.pick("sub_group_size", domains.sub_group_size)
        self.pick("zero_hpz_partition_size", domains.zero_hpz_partition_size)
        if self.pick("offload_param", self._parameter_devices()) != "none":
            self._pick_if("offload_param_pin_memory", domains.on_gpu, (True, False), True)

    def _parameter_devices(self) -> tuple[str, ...]:
        if not self.domains.on_gpu and "offload_param" not in self.limits:
            # On CPU ranks the parameters are in host memory already; only a user who asks for it gets the code path.
            return ("none",)
        return ("none", "cpu", "nvme") if self.domains.nvme else ("none", "cpu")

    def _offload_ratio(self, stage: int) -> None:
        """Partial offload moves whole sub-groups, so it needs at least two of them, and another device than the host."""
        partition = self.domains.profile.parameters / self.domains.world
        splits = stage == 3 and partition > int(self.table.get("sub_group_size", partition))
        candidates = (0.25, 0.5, 0.75, 1.0)
        effective = splits and self.domains.on_gpu and self.table["offload_optimizer"] == "cpu"
        if effective:
            self.pick("offload_optimizer_ratio", candidates)
        else:
            self.table["offload_optimizer_ratio"] = 1.0

    def _fsdp2(self, accumulates: bool) -> None:
        domains = self.domains
        world = domains.world
        replicates = self.limits.restrict("dp_replicate", divisors(world))
        if not replicates:
            raise NoLegalValue("dp_replicate", divisors(world))
        shard = int(self.pick("dp_shard", tuple(world // int(k) for k in reversed(replicates))))
        self.table["dp_replicate"] = max(1, world // shard)
        groups = domains.reshard_groups(shard)
        reshard = self.pick("reshard_after_forward", (True, False, *groups), at=f"{shard}" if groups else "")
        self._prefetch(shard, reshard)
        both = shard > 1 and world // shard > 1
        if accumulates and world > 1:
            policies = ("every", "reduce_scatter", "last") if both else ("every", "last")
            self.pick("grad_sync", policies, at="hsdp" if both else "")
        else:
            self.table["grad_sync"] = "every"
        # On CPU ranks shards are in host memory already.
        if self._pick_if("cpu_offload", domains.on_gpu, (False, True), False):
            self._pick_if("pin_memory", domains.on_gpu, (True, False), True)

    def _prefetch(self, shard: int, reshard: KnobValue) -> None:
        """Depths count units ahead; backward gathers nothing when forward kept the parameters."""
        default = Fsdp2Config(dp_shard=1)
        unit = int(self.pick("blocks_per_unit", self.domains.blocks_per_unit))
        gathers = self.domains.on_gpu and shard > 1
        for knob, effective in (("forward_prefetch", gathers), ("backward_prefetch", gathers and reshard is not False)):
            held = int(getattr(default, knob))
            depths = self.domains.prefetch_depths(unit, held)
            if effective and len(depths) > 1:
                self.pick(knob, depths, at="" if len(depths) == 3 else f"{len(depths)}")
            else:
                self.fix(knob, held, depths)

    def _fsdp1(self, accumulates: bool) -> None:
        domains, default = self.domains, Fsdp1Config(dp_shard=1)
        strategy = self._fsdp1_mesh()
        gathers = domains.on_gpu and int(self.table["dp_shard"]) > 1
        again = gathers and strategy in RESHARDING
        self._pick_if("fsdp1_forward_prefetch", gathers, (False, True), default.forward_prefetch)
        self._pick_if("fsdp1_backward_prefetch", again, ("BACKWARD_PRE", "BACKWARD_POST", "none"), "BACKWARD_PRE")
        self._pick_if("limit_all_gathers", gathers, (True, False), default.limit_all_gathers)
        compiled = bool(self.table["compile"])
        self.pick("use_orig_params", (True,) if compiled else (False, True), at="compiled" if compiled else "")
        recipe = domains.workload.recipe
        offloads = domains.on_gpu and not (accumulates and not sync_policies(True, recipe))
        if offloads:
            self.pick("cpu_offload", (False, True))
        else:
            self.table["cpu_offload"] = False  # a pin would be illegal here
        policies = sync_policies(bool(self.table["cpu_offload"]), recipe)
        if accumulates and domains.world > 1:
            self.pick("grad_sync", policies, at="" if len(policies) > 1 else policies[0])
        else:
            self.table["grad_sync"] = policies[0] if accumulates else default.grad_sync

    def _fsdp1_mesh(self) -> str:
        """Strategy and axes. NO_SHARD is left out: it is DDP, and upstream says so."""
        world = self.domains.world
        replicates = self.limits.restrict("dp_replicate", divisors(world))
        hybrid = tuple(int(k) for k in replicates if 1 < int(k) < world)
        strategies: tuple[ShardingStrategy, ...] = ()
        if 1 in replicates:
            # One rank shards nothing whatever the strategy.
            strategies = ("FULL_SHARD", "SHARD_GRAD_OP") if world > 1 else ("FULL_SHARD",)
        strategies += HYBRID if hybrid else ()
        if not strategies:
            raise NoLegalValue("dp_replicate", divisors(world)[:-1])
        strategy = str(self.pick("sharding_strategy", strategies))
        if strategy in HYBRID:
            shard = int(self.pick("dp_shard", tuple(world // k for k in reversed(hybrid)), at="hybrid"))
        else:
            shard = int(self.pick("dp_shard", (world,), at="whole"))
        self.table["dp_replicate"] = max(1, world // shard)
        return strategy
