"""Configuration of PyTorch `fully_shard` (FSDP2) on a device mesh `pipeline_parallel × dp_replicate × dp_shard ×
tensor_parallel`; HSDP if both `dp_replicate` and `dp_shard` exceed 1."""

from typing import Any

from pydantic import model_validator

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import expert_parallel, pipeline_parallel, pipeline_schedules
from shardtune.api_schemas.strategies.base import Checkpointing, GradSync, TrainerStep, check_mesh
from shardtune.api_schemas.strategies.fields import float8_gather
from shardtune.api_schemas.strategies.fields.fsdp2 import Fsdp2Fields
from shardtune.api_schemas.training.workload import Precision


class Fsdp2Config(Fsdp2Fields):
    """Arguments of `torch.distributed.fsdp.fully_shard` and of related calls for parallelism and prefetch."""

    @model_validator(mode="after")
    def _legal(self) -> "Fsdp2Config":
        group = self.reshard_after_forward
        if not isinstance(group, bool) and (group < 2 or group >= self.dp_shard or self.dp_shard % group):
            raise ValueError(
                f"reshard_after_forward ({group}) must be true, false or a divisor of dp_shard ({self.dp_shard}) "
                f"between 2 and {self.dp_shard - 1}; use true for full resharding"
            )
        if self.grad_sync == "reduce_scatter" and (self.dp_replicate == 1 or self.dp_shard == 1):
            raise ValueError(
                f"grad_sync ('reduce_scatter') needs dp_replicate ({self.dp_replicate}) and dp_shard ({self.dp_shard}) "
                "above 1; use 'every' or 'last'"
            )
        float8_gather.check(self.float8_gather, self.dp_shard, group, self.cpu_offload)
        return self

    @model_validator(mode="after")
    def _schedulable(self) -> "Fsdp2Config":
        schedule = self.pipeline_schedule
        pipeline_schedules.check_virtual(schedule, self.pipeline_virtual_stages, self.pipeline_parallel)
        pipeline_schedules.check_split(schedule, self.reshard_after_forward is False, self.grad_sync == "last")
        return self

    @property
    def sync_policy(self) -> GradSync:
        """Time at which gradients are reduced during gradient accumulation, in the form that all strategies share."""
        return self.grad_sync

    @property
    def model_parallel(self) -> int:
        """Number of ranks that together compute one copy of the model, on the same samples. It is tensor parallel ×
        pipeline stages."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def stages(self) -> int:
        """Number of pipeline stages into which the model is divided."""
        return self.pipeline_parallel

    @property
    def virtual_stages(self) -> int:
        """Number of pipeline stages on each rank."""
        return self.pipeline_virtual_stages

    @property
    def expert_ranks(self) -> int:
        """Number of adjacent ranks that divide the experts of a layer among them; each of these ranks trains on samples
        of its own."""
        return self.expert_parallel

    def check_blocks(self, checkpointing: Checkpointing, compiled: bool) -> None:
        """Reject activation checkpointing that the pipeline schedule does not allow, and `torch.compile` together with
        expert, pipeline or tensor parallelism.

        Raises:
            ValueError: names the field and the remedy.
        """
        pipeline_schedules.check_checkpointing(self.pipeline_schedule, checkpointing == "selective")
        if compiled and self.expert_parallel > 1:
            raise ValueError(
                f"compile (true) with expert_parallel ({self.expert_parallel}) would compile the tokens' exchanges, which nobody has "
                "tried; set compile to false or expert_parallel to 1"
            )
        if compiled and self.pipeline_parallel > 1:
            raise ValueError(
                f"compile (true) with pipeline_parallel ({self.pipeline_parallel}): nobody has tried stages of compiled blocks; "
                "set compile to false or pipeline_parallel to 1"
            )
        if compiled and self.tensor_parallel > 1:
            raise ValueError(
                f"compile (true) with tensor_parallel ({self.tensor_parallel}) would compile the blocks' exchanges, which "
                "nobody has tried; set compile to false or tensor_parallel to 1"
            )

    def check_ranks(self, ranks: int) -> None:
        """Reject sizes of parallel groups that do not divide the number of ranks, or whose product differs from it.

        Raises:
            ValueError: names the field and the remedy.
        """
        pipeline_parallel.check_ranks(self.pipeline_parallel, ranks)
        expert_parallel.check(self.expert_parallel, self.dp_shard, self.tensor_parallel)
        if ranks % self.tensor_parallel:
            raise ValueError(
                f"tensor_parallel ({self.tensor_parallel}) must divide the number of ranks ({ranks}); use 1 or a divisor"
            )
        check_mesh(self.dp_replicate, self.dp_shard, ranks, self.tensor_parallel, self.pipeline_parallel)

    def check_cluster(self, cluster: Cluster, precision: Precision, accumulation: int) -> None:
        """Reject an FSDP2 configuration whose mesh or pipeline schedule does not fit the cluster and the micro batches
        of a step.

        Raises:
            ValueError: names the field and the remedy.
        """
        super().check_cluster(cluster, precision, accumulation)
        pipeline_parallel.check(self.pipeline_parallel, accumulation)
        pipeline_schedules.check_micro_batches(self.pipeline_schedule, self.pipeline_parallel, accumulation)

    def to_fully_shard(self) -> dict[str, Any]:
        """Return those keyword arguments of `fully_shard(module, mesh=…, mp_policy=…, **…)` that need no torch objects."""
        return self.keyed("script")

    def to_accelerate(self, block_class: str) -> dict[str, Any]:
        """Return the `fsdp_config` section of an Accelerate configuration file (FSDP2). Accelerate cannot express
        prefetch depth, blocks per unit, gradient sync policy or resharding to a group."""
        return {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": block_class,
            "fsdp_reshard_after_forward": bool(self.reshard_after_forward),
            **self.keyed("accelerate"),
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }

    def to_training_arguments(self, step: TrainerStep) -> dict[str, Any]:
        """Return the fields of Hugging Face `TrainingArguments` (transformers 5) for this FSDP2 configuration.
        Activation checkpointing is stated in FSDP's section, because the Trainer does not accept its own argument
        together with FSDP."""
        section: dict[str, Any] = {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": bool(self.reshard_after_forward),
            "cpu_offload": self.cpu_offload,
            "cpu_ram_efficient_loading": True,
            "state_dict_type": "SHARDED_STATE_DICT",
            "activation_checkpointing": step.checkpoints,
            **self.keyed("training_arguments"),
        }
        if step.block_class is not None:
            section["transformer_layer_cls_to_wrap"] = [step.block_class]
        return {**step.sync_each_batch(self.grad_sync), "fsdp": True, "fsdp_config": section}

    def as_accelerate_runs_it(self, accumulation: int) -> "Fsdp2Config":
        """Return the configuration as Accelerate 1.15 would train it: it sets the prefetch itself, makes one FSDP unit
        of each block, and reduces gradients after each micro batch or once per step."""
        late = self.grad_sync == "reduce_scatter" and accumulation > 1
        changes = {
            "reshard_after_forward": bool(self.reshard_after_forward),
            "grad_sync": "last" if late else self.grad_sync,
        }
        return self.as_run_by("training_arguments", **changes)

    def describe(self) -> str:
        """Short description of the FSDP2 configuration for people."""
        if self.dp_replicate > 1 and self.dp_shard > 1:
            name = f"FSDP2, HSDP {self.dp_replicate}×{self.dp_shard}"
        elif self.dp_replicate > 1:
            name = f"FSDP2, replicated ×{self.dp_replicate}"
        elif self.dp_shard > 1:
            name = f"FSDP2, sharded ×{self.dp_shard}"
        else:
            name = "FSDP2, not sharded"
        if self.reshard_after_forward is False:
            name += ", kept after forward"
        elif self.reshard_after_forward is not True:
            name += f", kept in groups of {self.reshard_after_forward} after forward"
        if self.float8_gather:
            name += ", float8 gathers"
        if self.tensor_parallel > 1:
            name += f", tensor ×{self.tensor_parallel}"
        if self.pipeline_parallel > 1:
            chunks = f" × {self.pipeline_virtual_stages}" if self.pipeline_virtual_stages > 1 else ""
            name += f", {self.pipeline_parallel}{chunks} stages ({self.pipeline_schedule})"
        if self.expert_parallel > 1:
            name += f", experts ÷{self.expert_parallel}"
        return name + (", CPU offload" if self.cpu_offload else "")
