"""Configuration of PyTorch `fully_shard` (FSDP2) on a device mesh `pipeline_parallel × dp_replicate × dp_shard ×
tensor_parallel`; HSDP if both `dp_replicate` and `dp_shard` exceed 1."""

from typing import Any, Literal

from pydantic import Field, model_validator

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import expert_parallel, pipeline_parallel, pipeline_schedules
from shardtune.api_schemas.strategies.base import Checkpointing, GradSync, StrategySchema, TrainerStep, check_mesh
from shardtune.api_schemas.strategies.pipeline_schedules import PipelineSchedule
from shardtune.api_schemas.training.workload import Precision


class Fsdp2Config(StrategySchema):
    """Arguments of `torch.distributed.fsdp.fully_shard` and of related calls for parallelism and prefetch."""

    kind: Literal["fsdp2"] = "fsdp2"
    dp_replicate: int = Field(default=1, ge=1)
    """Number of replicate groups, across which gradients are all-reduced."""
    dp_shard: int = Field(ge=1)
    """Number of ranks over which parameters, gradients and optimizer state are sharded."""
    tensor_parallel: int = Field(default=1, ge=1, le=4096)
    """Number of adjacent ranks that split heads and widths of each block, positions between blocks, and the vocabulary
    of output head and loss. A larger value stores less of everything per rank; each block gathers and scatters
    activations twice in each pass."""
    pipeline_parallel: int = Field(default=1, ge=1, le=4096)
    """Number of pipeline stages, through which the micro batches of a step pass one after the other. A larger value
    puts fewer blocks on a rank and sends only hidden states, but ranks idle at the begin and end of a step."""
    pipeline_schedule: PipelineSchedule = "1f1b"
    """Order in which a pipeline stage runs micro batches. `1f1b`: backward as early as possible, so that few are in
    memory; `gpipe`: all forward, then all backward; `interleaved_1f1b`: 1F1B with several smaller stages per rank.
    `interleaved_zero_bubble`, `zbv_zero_bubble` and `dual_pipe_v` compute weight gradients while a rank would wait; the
    latter two place two stages on each rank, the first and the last stage on the first rank."""
    pipeline_virtual_stages: int = Field(default=1, ge=1, le=1024)
    """Number of pipeline stages on each rank: several with interleaved schedules, 2 with V-shaped ones. A larger value
    shortens the idle time at the begin and end of a step, keeps more micro batches in memory, and sends more often."""
    expert_parallel: int = Field(default=1, ge=1, le=4096)
    """Number of adjacent ranks of `dp_shard` that divide each layer's experts. With a larger value, a rank gathers,
    reduces and computes fewer experts, and tokens are exchanged with their experts' ranks in each pass."""
    reshard_after_forward: bool | int = True
    """Treatment of gathered parameters after forward. True: free them and gather again in backward; False: keep them;
    an integer: reshard to groups of that many ranks."""
    forward_prefetch: int = Field(default=0, ge=0, le=8)
    """Number of FSDP units gathered ahead in forward, in addition to the one that FSDP2 overlaps by itself."""
    backward_prefetch: int = Field(default=1, ge=0, le=8)
    """Number of FSDP units gathered ahead in backward; 1 is FSDP2's default behaviour."""
    blocks_per_unit: int = Field(default=1, ge=1)
    """Number of repeated blocks sharded as one FSDP unit. A larger value gives fewer, larger collectives and more
    memory gathered at once."""
    cpu_offload: bool = False
    """Whether parameter shards, gradients and optimizer state are stored in host memory."""
    pin_memory: bool = True
    """Whether offloaded shards are in page-locked memory; no effect without an accelerator."""
    grad_sync: GradSync = "every"
    """Time at which gradients are reduced during accumulation. `reduce_scatter` requires `dp_replicate` and `dp_shard`
    above 1 (`set_requires_all_reduce`); `last` keeps unsharded gradients in memory."""

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
        return self

    @model_validator(mode="after")
    def _schedulable(self) -> "Fsdp2Config":
        schedule = self.pipeline_schedule
        pipeline_schedules.check_virtual(schedule, self.pipeline_virtual_stages, self.pipeline_parallel)
        pipeline_schedules.check_split(schedule, self.reshard_after_forward is False, self.grad_sync == "last")
        return self

    @property
    def sync_policy(self) -> GradSync:
        """Time at which gradients are reduced during accumulation, as the value common to all strategies."""
        return self.grad_sync

    @property
    def model_parallel(self) -> int:
        """Number of ranks that together compute one copy of the model on the same samples (tensor parallel × pipeline
        stages)."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def stages(self) -> int:
        """Number of pipeline stages that the model is divided into."""
        return self.pipeline_parallel

    @property
    def virtual_stages(self) -> int:
        """Number of pipeline stages on each rank."""
        return self.pipeline_virtual_stages

    @property
    def expert_ranks(self) -> int:
        """Number of adjacent ranks that divide the experts of a layer, each with samples of its own."""
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
        """Reject parallel group sizes that do not divide the number of ranks, or whose product differs from it.

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
        """Return the keyword arguments for `fully_shard(module, mesh=…, mp_policy=…, **…)` that do not need torch
        objects."""
        return {"reshard_after_forward": self.reshard_after_forward}

    def to_accelerate(self, block_class: str) -> dict[str, Any]:
        """Return the `fsdp_config` section of an Accelerate configuration file (FSDP2). Accelerate cannot express
        prefetch depth, blocks per unit, gradient sync policy or resharding to a group."""
        return {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": block_class,
            "fsdp_reshard_after_forward": bool(self.reshard_after_forward),
            "fsdp_offload_params": self.cpu_offload,
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }

    def to_training_arguments(self, step: TrainerStep) -> dict[str, Any]:
        """Return the fields of Hugging Face `TrainingArguments` (transformers 5) for this FSDP2 configuration; Trainer
        requires FSDP's activation checkpointing instead of its own argument."""
        section: dict[str, Any] = {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": bool(self.reshard_after_forward),
            "cpu_offload": self.cpu_offload,
            "cpu_ram_efficient_loading": True,
            "state_dict_type": "SHARDED_STATE_DICT",
            "activation_checkpointing": step.checkpoints,
        }
        if step.block_class is not None:
            section["transformer_layer_cls_to_wrap"] = [step.block_class]
        return {**step.sync_each_batch(self.grad_sync), "fsdp": True, "fsdp_config": section}

    def as_accelerate_runs_it(self, accumulation: int) -> "Fsdp2Config":
        """Return the configuration as Accelerate 1.15 would run it: with its own prefetch, one FSDP unit per block, and
        gradients reduced at each micro batch or once."""
        late = self.grad_sync == "reduce_scatter" and accumulation > 1
        changes = {
            "forward_prefetch": 0,
            "backward_prefetch": 1,
            "blocks_per_unit": 1,
            "pin_memory": True,
            "reshard_after_forward": bool(self.reshard_after_forward),
            "grad_sync": "last" if late else self.grad_sync,
        }
        return Fsdp2Config.model_validate({**self.model_dump(), **changes})

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
        if self.tensor_parallel > 1:
            name += f", tensor ×{self.tensor_parallel}"
        if self.pipeline_parallel > 1:
            chunks = f" × {self.pipeline_virtual_stages}" if self.pipeline_virtual_stages > 1 else ""
            name += f", {self.pipeline_parallel}{chunks} stages ({self.pipeline_schedule})"
        if self.expert_parallel > 1:
            name += f", experts ÷{self.expert_parallel}"
        return name + (", CPU offload" if self.cpu_offload else "")
