"""Configuration of PyTorch `FullyShardedDataParallel` (FSDP1), for users who have not moved to FSDP2: flat parameters,
one FSDP unit per block."""

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies.base import Checkpointing, GradSync, check_mesh
from shardtune.api_schemas.strategies.fields.fsdp1 import Fsdp1Fields, ShardingStrategy
from shardtune.api_schemas.training.workload import Precision

HYBRID: tuple[ShardingStrategy, ...] = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
"""FSDP1 sharding strategies that shard within a group of ranks and replicate across groups."""
RESHARDING: tuple[ShardingStrategy, ...] = ("FULL_SHARD", "HYBRID_SHARD")
"""Sharding strategies of FSDP1 that free gathered parameters after forward."""


class Fsdp1Config(Fsdp1Fields):
    """Arguments of `torch.distributed.fsdp.FullyShardedDataParallel`, which wraps each repeated block and the root
    module."""

    flattens: ClassVar[str | None] = "FSDP1 steps flat shards of many parameters"

    @model_validator(mode="after")
    def _legal(self) -> "Fsdp1Config":
        strategy, replicate, shard = self.sharding_strategy, self.dp_replicate, self.dp_shard
        mesh = f"dp_replicate × dp_shard ({replicate} × {shard})"
        if strategy in HYBRID and min(replicate, shard) == 1:
            raise ValueError(
                f"sharding_strategy ({strategy!r}) needs both axes above 1, not {mesh}; use FULL_SHARD or SHARD_GRAD_OP"
            )
        if strategy in ("FULL_SHARD", "SHARD_GRAD_OP") and replicate > 1:
            raise ValueError(
                f"sharding_strategy ({strategy!r}) shards over all ranks, not {mesh}; set dp_replicate to 1 or use HYBRID_SHARD"
            )
        if strategy == "NO_SHARD" and shard > 1:
            raise ValueError(f"sharding_strategy ('NO_SHARD') shards nothing, not {mesh}; set dp_shard to 1")
        return self

    @property
    def sync_policy(self) -> GradSync:
        """Time at which gradients are reduced during gradient accumulation, in the form that all strategies share."""
        return self.grad_sync

    @property
    def keeps_parameters(self) -> bool:
        """Whether gathered parameters stay in memory from forward to backward."""
        return self.dp_shard > 1 and self.sharding_strategy not in RESHARDING

    def check_blocks(self, checkpointing: Checkpointing, compiled: bool) -> None:
        """Reject `torch.compile` together with flat parameters (`use_orig_params: false`).

        Raises:
            ValueError: names the field and the remedy.
        """
        if compiled and not self.use_orig_params:
            raise ValueError(
                "use_orig_params (false) cannot be compiled under FSDP1; set it to true, or compile to false"
            )

    def check_ranks(self, ranks: int) -> None:
        """Reject numbers of replicas (`dp_replicate`) and of shards (`dp_shard`) whose product differs from the number
        of ranks.

        Raises:
            ValueError: names the field and the remedy.
        """
        check_mesh(self.dp_replicate, self.dp_shard, ranks)

    def check_cluster(self, cluster: Cluster, precision: Precision, accumulation: int) -> None:
        """Reject an FSDP1 configuration that cannot run on the cluster, such as CPU offload on CPU ranks, or that would
        accumulate gradients wrongly.

        Raises:
            ValueError: names the field and the remedy.
        """
        super().check_cluster(cluster, precision, accumulation)
        if self.cpu_offload and cluster.device == "cpu":
            raise ValueError(
                "cpu_offload (true) needs page-locked memory under FSDP1, which torch has only with a GPU; set it to false: "
                "on CPU ranks shards are in host memory already"
            )
        self.check_accumulation(precision, accumulation)

    def check_accumulation(self, precision: Precision, accumulation: int) -> None:
        """Reject settings with which torch 2.13 accumulates gradients wrongly although it accepts them without a
        warning.

        Raises:
            ValueError: names the field and the remedy.
        """
        legal = sync_policies(self.cpu_offload, precision)
        if accumulation > 1 and self.grad_sync not in legal:
            why = (
                "replaces offloaded gradients instead of adding to them"
                if self.grad_sync == "every"
                else f"adds micro batches up in {precision.weights_dtype}, the precision ({precision.name!r}) in {precision.reduce_dtype}"
            )
            raise ValueError(
                f"grad_sync ({self.grad_sync!r}) with gradient accumulation ({accumulation}): FSDP1 {why}; "
                + (
                    f"use {legal[0]!r}"
                    if legal
                    else "set cpu_offload to false, or raise micro_batch to accumulate nothing"
                )
            )

    def to_fsdp1(self) -> dict[str, Any]:
        """Return those keyword arguments of `FullyShardedDataParallel(module, **…)` that need no torch objects."""
        return self.keyed("script")

    def to_accelerate(self, block_class: str) -> dict[str, Any]:
        """Return the `fsdp_config` section of an Accelerate configuration file (FSDP1). Accelerate cannot express
        `limit_all_gathers` or the gradient sync policy, and always uses one hybrid group per node."""
        return {
            "fsdp_version": 1,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": block_class,
            "fsdp_sharding_strategy": self.sharding_strategy.removeprefix("_"),
            "fsdp_backward_prefetch": self.backward_prefetch or "NO_PREFETCH",
            **self.keyed("accelerate"),
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_sync_module_states": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }

    def describe(self) -> str:
        """Short description of the FSDP1 configuration for people."""
        if self.sharding_strategy in HYBRID:
            name = f"FSDP1, hybrid {self.dp_replicate}×{self.dp_shard}"
        elif self.sharding_strategy == "NO_SHARD":
            name = f"FSDP1, replicated ×{self.dp_replicate}"
        else:
            name = f"FSDP1, sharded ×{self.dp_shard}"
        if self.keeps_parameters:
            name += ", kept after forward"
        return name + (", CPU offload" if self.cpu_offload else "")


def sync_policies(cpu_offload: bool, precision: Precision) -> tuple[Literal["every", "last"], ...]:
    """Return the values of `grad_sync` with which FSDP1 accumulates gradients correctly in this precision (torch 2.13,
    `_runtime_utils.py` and `_flat_param.py`). With offload, each reduction overwrites the previous gradient on the
    host. Under `no_sync`, gradients are summed in the dtype of the gathered parameters, regardless of
    `reduce_dtype`."""
    every: tuple[Literal["every", "last"], ...] = () if cpu_offload else ("every",)
    return (*every, "last") if precision.weights_dtype == precision.reduce_dtype else every
