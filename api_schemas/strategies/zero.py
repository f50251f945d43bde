"""Configuration of DeepSpeed ZeRO stages 1-3 (Rajbhandari et al. 2020), with offload and ZeRO++ hpZ. Stage 0 is
omitted: it is the same as DDP, and DeepSpeed 0.19.8 in bf16 at stage 0 trains something else."""

from typing import Any, ClassVar

from pydantic import model_validator

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies.base import Checkpointing, GradSync, TrainerStep
from shardtune.api_schemas.strategies.fields.zero import ZeroFields
from shardtune.api_schemas.training.workload import Precision, Workload

_DTYPE = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_LOW_STATES = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
"""Switches of DeepSpeed that keep weights, gradients and optimizer states in bfloat16. Without them DeepSpeed (0.19.8)
keeps master weights and moments in float32."""
_LOSS_SCALE = {"enabled": True, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 2000, "hysteresis": 1}
"""Settings of DeepSpeed's dynamic loss scale (`loss_scale` 0 means dynamic). They give the steps of torch's
`GradScaler`: the scale is halved after each overflow and doubled after 2,000 steps without one."""


class ZeroConfig(ZeroFields):
    """Section `zero_optimization` of a DeepSpeed configuration. Bucket sizes and thresholds count elements, not bytes."""

    flattens: ClassVar[str | None] = "DeepSpeed steps flat partitions of many parameters"

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
        """Time at which gradients are reduced during gradient accumulation. ZeRO stage 1 reduces them after the last
        micro batch. Stages 2 and 3 forbid `no_sync`, and reduce them after every micro batch."""
        return "last" if self.stage == 1 else "every"

    @property
    def compiles(self) -> bool:
        """Whether DeepSpeed itself compiles the model (DeepCompile)."""
        return self.deepcompile

    def check_blocks(self, checkpointing: Checkpointing, compiled: bool) -> None:
        """Reject combinations of compilation, activation checkpointing and ZeRO stage that DeepSpeed cannot run.

        Raises:
            ValueError: names the field and the remedy.
        """
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
        """Reject a size of the secondary shard group (ZeRO++ hpZ) that does not divide the number of ranks.

        Raises:
            ValueError: names the field and the remedy.
        """
        if ranks % self.zero_hpz_partition_size:
            # DeepSpeed takes it, and gathers from groups that do not exist.
            raise ValueError(
                f"zero_hpz_partition_size ({self.zero_hpz_partition_size}) must divide the number of ranks ({ranks}); "
                "use 1 or a divisor"
            )

    def check_cluster(self, cluster: Cluster, precision: Precision, accumulation: int) -> None:
        """Reject a ZeRO configuration that cannot run on the cluster, such as DeepCompile on CPU ranks.

        Raises:
            ValueError: names the field and the remedy.
        """
        super().check_cluster(cluster, precision, accumulation)
        if self.deepcompile and cluster.device == "cpu":
            # deepspeed 0.19.8 would go on without it and without a word (`is_deepcompile_supported`).
            raise ValueError("deepcompile (true) needs GPUs, and this cluster has CPU ranks; set it to false")

    def to_training_arguments(self, step: TrainerStep) -> dict[str, Any]:
        """Return the fields of Hugging Face `TrainingArguments` (transformers 5) that make Trainer run this ZeRO
        configuration."""
        document = self.to_deepspeed(step.workload, step.micro_batch, step.accumulation)
        # Else Trainer asks for DeepSpeed's own bf16, which casts the weights.
        own = {"bf16": False} if step.workload.precision.autocast else {}
        if step.workload.precision.has_low_states:
            # Trainer compares its own switch with DeepSpeed's, and enters no autocast beside DeepSpeed.
            own = {"bf16": True}
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
        """Return the complete DeepSpeed JSON configuration, used by trials (`deepspeed.initialize`) and by exports. It
        has no `optimizer` section: the caller builds the optimizer (torch AdamW, or DeepSpeedCPUAdam if offloaded), so
        that every backend uses the same arithmetic."""
        precision = workload.precision
        return {
            # DeepSpeed counts a sample once for each of the ranks that share it, and rejects another product.
            "train_batch_size": workload.global_batch * context_parallel,
            "train_micro_batch_size_per_gpu": micro_batch,
            "gradient_accumulation_steps": accumulation,
            "gradient_clipping": workload.max_grad_norm or 0.0,
            "bf16": {
                "enabled": precision.weights_dtype == "bfloat16",
                **(_LOW_STATES if precision.has_low_states else {}),
            },
            **({"fp16": _LOSS_SCALE} if precision.scales_loss else {}),
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
        section = self.keyed("deepspeed")
        if self.stage == 3:
            section["stage3_gather_16bit_weights_on_model_save"] = True
        for key, offload in (("offload_optimizer", self.offload_optimizer), ("offload_param", self.offload_param)):
            if offload is not None:
                section[key] = {"device": offload.device, "pin_memory": offload.pin_memory}
                if key == "offload_optimizer" and self.stage == 3:
                    section[key]["ratio"] = offload.ratio
        return section

    def describe(self) -> str:
        """Short description of the ZeRO configuration for people."""
        parts = [f"ZeRO-{self.stage}"]
        if self.zero_hpz_partition_size > 1:
            parts.append(f"hpZ {self.zero_hpz_partition_size}")
        if self.offload_optimizer is not None:
            # Other stages offload all of it.
            share = (
                "" if self.stage < 3 or self.offload_optimizer.ratio == 1 else f"{self.offload_optimizer.ratio:.3g} of "
            )
            # By what runs, not by where: on CPU ranks everything is "on cpu".
            parts.append(f"{share}optimizer offloaded (DeepSpeed's C++ Adam)")
        if self.offload_param is not None:
            parts.append("parameters offloaded")
        if self.deepcompile:
            parts.append("DeepCompile")
        return ", ".join(parts)


def _autocast(precision: Precision) -> dict[str, Any]:
    """Return the section of DeepSpeed's own autocast. Its list of modules that stay in a lower precision is empty,
    because DeepSpeed's default list makes it gather and reduce the linear layers in the lower dtype."""
    return {"enabled": True, "dtype": precision.compute_dtype, "lower_precision_safe_modules": []}
