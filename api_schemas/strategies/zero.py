"""DeepSpeed ZeRO stages 1-3 (Rajbhandari et al. 2020), with offload and ZeRO++ hpZ.

Stage 0 is left out: DDP is that, and DeepSpeed 0.19.8 in bf16 at stage 0 trains something else.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies.base import Checkpointing, GradSync, StrategySchema, TrainerStep
from shardtune.api_schemas.training.workload import Precision, Workload

_DTYPE = {"float32": "fp32", "bfloat16": "bf16"}


class Offload(Schema):
    """Device to which a kind of state is offloaded."""

    device: Literal["cpu"] = "cpu"
    """Device: the host. NVMe is left out: deepspeed 0.19.8 leaves no tensors to check once they are swapped out."""
    pin_memory: bool = True
    """Whether to page-lock host memory for faster copies."""
    ratio: float = Field(default=1.0, gt=0, le=1)
    """Fraction of the optimizer state offloaded (stage 3 only; ignored for parameters)."""


class ZeroConfig(StrategySchema):
    """Section `zero_optimization` of a DeepSpeed configuration; sizes count elements, not bytes."""

    kind: Literal["zero"] = "zero"
    stage: Literal[1, 2, 3]
    reduce_bucket_size: int = Field(default=500_000_000, ge=1)
    """Elements reduced per collective. Larger: fewer launches, more memory held during backward."""
    allgather_bucket_size: int = Field(default=500_000_000, ge=1)
    """Elements gathered per collective after the step. Stages 1 and 2; stage 3 ignores it."""
    overlap_comm: bool = True
    """Whether to reduce gradients while backward still computes. Costs a second bucket."""
    contiguous_gradients: bool = True
    """Whether to copy gradients into one buffer as they appear, against fragmentation."""
    round_robin_gradients: bool = False
    """Whether to spread the copy to the host or partition over ranks; stages 1 and 2."""
    stage3_prefetch_bucket_size: int = Field(default=50_000_000, ge=0)
    """Elements gathered ahead of use."""
    stage3_param_persistence_threshold: int = Field(default=100_000, ge=0)
    """Parameters with fewer elements stay gathered."""
    stage3_max_live_parameters: int = Field(default=1_000_000_000, ge=0)
    """Elements that may be gathered at once."""
    stage3_max_reuse_distance: int = Field(default=1_000_000_000, ge=0)
    """Distance in elements within which a parameter that is needed again is kept."""
    sub_group_size: int = Field(default=1_000_000_000, ge=1)
    """Elements that the optimizer updates at a time; stage 3."""
    zero_hpz_partition_size: int = Field(default=1, ge=1)
    """Ranks of ZeRO++'s secondary shard group that backward gathers from; 1 turns it off."""
    offload_optimizer: Offload | None = None
    offload_param: Offload | None = None
    """Offload of parameters; stage 3 only."""
    deepcompile: bool = False
    """Whether DeepSpeed compiles the whole model with its gathers and reductions in the graph (DeepCompile). On
    GPUs; its operator is built there at the first use."""

    @model_validator(mode="after")
    def _legal(self) -> "ZeroConfig":
        if self.offload_param is not None and self.stage != 3:
            raise ValueError(f"offload_param needs stage 3, not stage ({self.stage}); drop it or use stage 3")
        if self.zero_hpz_partition_size > 1 and self.stage != 3:
            raise ValueError(
                f"zero_hpz_partition_size ({self.zero_hpz_partition_size}) needs stage 3, not stage ({self.stage}); use 1"
            )
        return self

    @property
    def sync_policy(self) -> GradSync:
        """Policy by stage: stage 1 reduces at the accumulation boundary; stages 2 and 3 every micro batch (they
        forbid `no_sync`)."""
        return "last" if self.stage == 1 else "every"

    @property
    def compiles(self) -> bool:
        """See `StrategySchema`."""
        return self.deepcompile

    def check_blocks(self, checkpointing: Checkpointing, compiled: bool) -> None:
        """See `StrategySchema`."""
        if self.deepcompile and compiled:
            raise ValueError(
                "compile (true) and deepcompile (true) compile the same blocks twice; set one of them to false"
            )
        if checkpointing == "selective" and self.stage == 3:
            # deepspeed 0.19.8 issues other gathers in recomputation than in forward, by prefetch and persistence, and
            # torch matches operators by their count: "aten.cat.default invocation index 2 … not found in storage".
            raise ValueError(
                "activation_checkpointing ('selective') does not work at ZeRO stage (3), whose gathers differ between "
                "forward and recomputation; use 'full' or 'none', or another strategy"
            )

    def check_ranks(self, ranks: int) -> None:
        """See `StrategySchema`."""
        if ranks % self.zero_hpz_partition_size:
            # DeepSpeed takes it, and gathers from groups that do not exist.
            raise ValueError(
                f"zero_hpz_partition_size ({self.zero_hpz_partition_size}) must divide the number of ranks ({ranks}); "
                "use 1 or a divisor"
            )

    def check_cluster(self, cluster: Cluster, precision: Precision, accumulation: int) -> None:
        """See `StrategySchema`."""
        super().check_cluster(cluster, precision, accumulation)
        if self.deepcompile and cluster.device == "cpu":
            # deepspeed 0.19.8 would go on without it and without a word (`is_deepcompile_supported`).
            raise ValueError("deepcompile (true) needs GPUs, and this cluster has CPU ranks; set it to false")

    def to_training_arguments(self, step: TrainerStep) -> dict[str, Any]:
        """See `StrategySchema`."""
        document = self.to_deepspeed(step.workload, step.micro_batch, step.accumulation)
        # Else Trainer asks for DeepSpeed's own bf16, which casts the weights.
        own = {"bf16": False} if step.workload.precision.autocast else {}
        # Accelerate calls the engine's `compile`, without which nothing is compiled, where Trainer is told to compile.
        return {
            "deepspeed": document,
            **own,
            **({"torch_compile": True} if self.deepcompile else {}),
            **step.checkpointing(),
        }

    def to_deepspeed(
        self, workload: Workload, micro_batch: int, accumulation: int, context_parallel: int = 1
    ) -> dict[str, Any]:
        """Return the complete DeepSpeed JSON, which the trial passes to `deepspeed.initialize` and the exporter
        writes.

        The optimizer is built by the caller (torch AdamW, or DeepSpeedCPUAdam with an offloaded optimizer), so
        that its arithmetic is the same as every other backend's; hence no `optimizer` section.
        """
        precision = workload.precision
        return {
            # DeepSpeed counts a sample once for each of the ranks that share it, and rejects another product.
            "train_batch_size": workload.global_batch * context_parallel,
            "train_micro_batch_size_per_gpu": micro_batch,
            "gradient_accumulation_steps": accumulation,
            "gradient_clipping": workload.max_grad_norm or 0.0,
            "bf16": {"enabled": precision.weights_dtype == "bfloat16"},
            **({"torch_autocast": _autocast(precision)} if precision.autocast else {}),
            "communication_data_type": _DTYPE[precision.reduce_dtype],
            "data_types": {"grad_accum_dtype": _DTYPE[precision.reduce_dtype]},
            "zero_allow_untested_optimizer": True,
            # DeepSpeed's own timer waits for the device twice in each micro batch (0.19.8, ThroughputTimer).
            "timers": {"throughput": {"enabled": False}},
            "zero_optimization": self._zero_section(),
            **({"compile": {"deepcompile": True}} if self.deepcompile else {}),
        }

    def _zero_section(self) -> dict[str, Any]:
        section: dict[str, Any] = {
            "stage": self.stage,
            "reduce_bucket_size": self.reduce_bucket_size,
            "overlap_comm": self.overlap_comm,
            "contiguous_gradients": self.contiguous_gradients,
        }
        if self.stage < 3:
            section["allgather_bucket_size"] = self.allgather_bucket_size
            section["round_robin_gradients"] = self.round_robin_gradients
        else:
            section |= {
                "stage3_prefetch_bucket_size": self.stage3_prefetch_bucket_size,
                "stage3_param_persistence_threshold": self.stage3_param_persistence_threshold,
                "stage3_max_live_parameters": self.stage3_max_live_parameters,
                "stage3_max_reuse_distance": self.stage3_max_reuse_distance,
                "sub_group_size": self.sub_group_size,
                "zero_hpz_partition_size": self.zero_hpz_partition_size,
                "stage3_gather_16bit_weights_on_model_save": True,
            }
        for key, offload in (("offload_optimizer", self.offload_optimizer), ("offload_param", self.offload_param)):
            if offload is not None:
                section[key] = {"device": offload.device, "pin_memory": offload.pin_memory}
                if key == "offload_optimizer" and self.stage == 3:
                    section[key]["ratio"] = offload.ratio
        return section

    def describe(self) -> str:
        """The strategy in words."""
        parts = [f"ZeRO-{self.stage}"]
        if self.zero_hpz_partition_size > 1:
            parts.append(f"hpZ {self.zero_hpz_partition_size}")
        if self.offload_optimizer is not None:
            # Other stages offload all of it.
            share = (
                "" if self.stage < 3 or self.offload_optimizer.ratio == 1 else f"{self.offload_optimizer.ratio:.3g} of "
            )
            parts.append(f"{share}optimizer on {self.offload_optimizer.device}")
        if self.offload_param is not None:
            parts.append(f"parameters on {self.offload_param.device}")
        if self.deepcompile:
            parts.append("DeepCompile")
        return ", ".join(parts)


def _autocast(precision: Precision) -> dict[str, Any]:
    """DeepSpeed's own section. By default it gathers and reduces the linear layers in the lower dtype: the list is empty."""
    return {"enabled": True, "dtype": precision.compute_dtype, "lower_precision_safe_modules": []}
