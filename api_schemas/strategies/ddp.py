"""Configuration of PyTorch DistributedDataParallel: every rank has a full replica of the model, and gradients are
all-reduced in buckets."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from shardtune.api_schemas.knobs import Key, Knob, Lost, When, Written
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies.base import GradSync, StrategySchema, TrainerStep
from shardtune.api_schemas.strategies.fields.common_knobs import GRAD_SYNC, NO_SETTING
from shardtune.api_schemas.training.workload import Precision


class DdpConfig(StrategySchema):
    """Arguments of `torch.nn.parallel.DistributedDataParallel`."""

    kind: Literal["ddp"] = "ddp"
    bucket_cap_mb: Annotated[
        int,
        Knob(
            help="DDP: MiB of gradients per all-reduce (`bucket_cap_mb`).",
            name="bucket",
            unit="MiB",
            when=When(has_peers=True),
            accepts_own_values=True,
            lightest="min",
            makes_twins=True,
            exports={
                "script": Key("bucket_cap_mb"),
                "accelerate": Written("`DistributedDataParallelKwargs` in your script"),
                "training_arguments": Key("ddp_bucket_cap_mb"),
                "torchtitan": Lost("has no DistributedDataParallel (0.3)"),
                "lightning": Written("`DDPStrategy(bucket_cap_mb=…)`"),
            },
            values_text="MiB of gradients in 1, 2 and 4 blocks; 25 (torch's default); the model",
        ),
    ] = Field(default=25, ge=1, le=4096)
    """Size in MiB of a gradient bucket, which one all-reduce sums over the ranks. Larger buckets need fewer launches,
    and let communication begin later in backward."""
    gradient_as_bucket_view: Annotated[
        bool,
        Knob(
            help="DDP: gradients live in the communication buckets, which saves a copy (`gradient_as_bucket_view=True`).",
            tries=(False, True),
            lightest=True,
            makes_twins=True,
            exports={
                "script": Key("gradient_as_bucket_view"),
                "accelerate": Written("`DistributedDataParallelKwargs` in your script"),
                "training_arguments": Lost("has no field for it; `finish` in `trainer_snippet.py` sets it"),
                "torchtitan": NO_SETTING,
                "lightning": Written("`DDPStrategy(gradient_as_bucket_view=…)`"),
            },
        ),
    ] = False
    """Whether gradients are views of the communication buckets. This saves the memory of a second copy of the
    gradients, and the time to copy them."""
    static_graph: Annotated[
        bool,
        Knob(
            help="DDP: the graph never changes between steps (`static_graph=True`).",
            tries=(False, True),
            when=When(accumulates=False),
            lightest=False,
            makes_twins=True,
            without_term="spares the reducer a search through the graph: less than runs differ by",
            exports={
                "script": Key("static_graph"),
                "accelerate": Written("`DistributedDataParallelKwargs` in your script"),
                "training_arguments": Key("ddp_static_graph"),
                "torchtitan": NO_SETTING,
                "lightning": Written("`DDPStrategy(static_graph=…)`"),
            },
            when_text="accumulation 1: under `no_sync` torch 2.13 skips reductions with it; no parameters without a gradient",
        ),
    ] = False
    """Whether to assume that the autograd graph never changes. Not allowed with gradient accumulation: with `no_sync`,
    torch 2.13 skips reductions."""
    grad_sync: Annotated[
        Literal["every", "last"],
        replace(
            GRAD_SYNC,
            exports={
                "script": Written("`no_sync` around all micro batches but the last"),
                "accelerate": Written("`GradientAccumulationPlugin(sync_each_batch=…)` in your script"),
                "training_arguments": Written("`accelerator_config`, `sync_each_batch`"),
                "torchtitan": Lost("reduces after every micro batch", runs="every"),
                "lightning": Lost("reduces after the last micro batch", runs="last"),
            },
        ),
    ] = "last"
    """Time at which gradients are reduced during gradient accumulation: after every micro batch (`every`), or only
    after the last one (`last`), which accumulates under `no_sync`."""

    @property
    def sync_policy(self) -> GradSync:
        """Time at which gradients are reduced during gradient accumulation, in the form that all strategies share."""
        return self.grad_sync

    def check_cluster(self, cluster: Cluster, precision: Precision, accumulation: int) -> None:
        """Reject a DDP configuration that cannot run on the cluster, or that would accumulate gradients wrongly.

        Raises:
            ValueError: names the field and the remedy.
        """
        super().check_cluster(cluster, precision, accumulation)
        if self.static_graph and accumulation > 1 and self.grad_sync == "last":
            raise ValueError(
                f"static_graph (true) with {accumulation} micro batches per step does not train under no_sync (torch 2.13); set it "
                "to false"
            )

    def to_ddp(self) -> dict[str, Any]:
        """Return the keyword arguments for `DistributedDataParallel(model, **…)`."""
        return self.keyed("script")

    def to_training_arguments(self, step: TrainerStep) -> dict[str, Any]:
        """Return the fields of Hugging Face `TrainingArguments` (transformers 5) for this DDP configuration; no field
        exists for `gradient_as_bucket_view`."""
        return {
            **self.keyed("training_arguments"),
            "ddp_broadcast_buffers": False,
            "ddp_find_unused_parameters": False,
            **step.sync_each_batch(self.grad_sync),
            **step.checkpointing(),
        }

    def describe(self) -> str:
        """Short description of the DDP configuration for people."""
        return "DDP"
