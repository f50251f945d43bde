"""Configuration of PyTorch DistributedDataParallel: every rank has a full replica of the model, and gradients are
all-reduced in buckets."""

from typing import Any, Literal

from pydantic import Field

from shardtune.api_schemas.strategies.base import GradSync, StrategySchema, TrainerStep


class DdpConfig(StrategySchema):
    """Arguments of `torch.nn.parallel.DistributedDataParallel`."""

    kind: Literal["ddp"] = "ddp"
    bucket_cap_mb: int = Field(default=25, ge=1, le=4096)
    """Size of a gradient bucket in MiB, reduced by one all-reduce. A larger value gives fewer launches and a later
    start of overlap."""
    gradient_as_bucket_view: bool = False
    """Whether gradients are views of the communication buckets, which avoids one copy of them."""
    static_graph: bool = False
    """Whether to assume that the autograd graph never changes. Not allowed with gradient accumulation: with `no_sync`,
    torch 2.13 skips reductions."""
    grad_sync: Literal["every", "last"] = "last"
    """Time at which gradients are reduced during accumulation; `last` accumulates under `no_sync`."""

    @property
    def sync_policy(self) -> GradSync:
        """Time at which gradients are reduced during accumulation, as the value common to all strategies."""
        return self.grad_sync

    def to_ddp(self) -> dict[str, Any]:
        """Return the keyword arguments for `DistributedDataParallel(model, **…)`."""
        return {
            "bucket_cap_mb": self.bucket_cap_mb,
            "gradient_as_bucket_view": self.gradient_as_bucket_view,
            "static_graph": self.static_graph,
        }

    def to_training_arguments(self, step: TrainerStep) -> dict[str, Any]:
        """Return the fields of Hugging Face `TrainingArguments` (transformers 5) for this DDP configuration; no field
        exists for `gradient_as_bucket_view`."""
        return {
            "ddp_bucket_cap_mb": self.bucket_cap_mb,
            "ddp_static_graph": self.static_graph,
            "ddp_broadcast_buffers": False,
            "ddp_find_unused_parameters": False,
            **step.sync_each_batch(self.grad_sync),
            **step.checkpointing(),
        }

    def describe(self) -> str:
        """Short description of the DDP configuration for people."""
        return "DDP"
