"""PyTorch DistributedDataParallel: a full replica per rank, gradients all-reduced in buckets."""

from typing import Any, Literal

from pydantic import Field

from shardtune.api_schemas.strategies.base import GradSync, StrategySchema, TrainerStep


class DdpConfig(StrategySchema):
    """Arguments of `torch.nn.parallel.DistributedDataParallel`."""

    kind: Literal["ddp"] = "ddp"
    bucket_cap_mb: int = Field(default=25, ge=1, le=4096)
    """MiB of gradients per all-reduce. Larger: fewer launches, later start of overlap."""
    gradient_as_bucket_view: bool = False
    """Gradients live in the buckets, which saves one copy of them."""
    static_graph: bool = False
    """The graph never changes. Only without accumulation: with `no_sync` torch 2.13 skips reductions."""
    grad_sync: Literal["every", "last"] = "last"
    """`last` accumulates under `no_sync`."""

    @property
    def sync_policy(self) -> GradSync:
        """The policy in the words all strategies share."""
        return self.grad_sync

    def to_ddp(self) -> dict[str, Any]:
        """Keyword arguments for `DistributedDataParallel(model, **…)`."""
        return {
            "bucket_cap_mb": self.bucket_cap_mb,
            "gradient_as_bucket_view": self.gradient_as_bucket_view,
            "static_graph": self.static_graph,
        }

    def to_training_arguments(self, step: TrainerStep) -> dict[str, Any]:
        """See `StrategySchema`; `gradient_as_bucket_view` has no field."""
        return {
            "ddp_bucket_cap_mb": self.bucket_cap_mb,
            "ddp_static_graph": self.static_graph,
            "ddp_broadcast_buffers": False,
            "ddp_find_unused_parameters": False,
            **step.sync_each_batch(self.grad_sync),
            **step.checkpointing(),
        }

    def describe(self) -> str:
        """The strategy in words."""
        return "DDP"
