"""PyTorch `fully_shard` (FSDP2) on a mesh `pipeline_parallel × dp_replicate × dp_shard × tensor_parallel`; HSDP when both in the middle exceed 1."""

from typing import Any, Literal

from pydantic import Field, model_validator

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import expert_parallel, pipeline_parallel, pipeline_schedules
from shardtune.api_schemas.strategies.base import Checkpointing, GradSync, StrategySchema, TrainerStep, check_mesh
from shardtune.api_schemas.strategies.pipeline_schedules import PipelineSchedule
from shardtune.api_schemas.training.workload import Precision


class Fsdp2Config(StrategySchema):
    """Arguments of `torch.distributed.fsdp.fully_shard` and of the calls around it."""

    kind: Literal["fsdp2"] = "fsdp2"
    dp_replicate: int = Field(default=1, ge=1)
    """Replicate groups. Gradients are all-reduced across them."""
    dp_shard: int = Field(ge=1)
    """Ranks over which parameters, gradients and optimizer state are sharded."""
    tensor_parallel: int = Field(default=1, ge=1, le=4096)
    """Adjacent ranks that split heads and widths of each block, positions between blocks, and the vocabulary of the
    head and the loss. More: a rank holds less of everything, and each block gathers and scatters activations twice
    in each pass."""
    pipeline_parallel: int = Field(default=1, ge=1, le=4096)
    """Stages, each with blocks of its own, through which the micro batches of a step go one after the other. More: a rank holds
    fewer blocks and sends hidden states alone, and waits while the first and last micro batches are elsewhere."""
    pipeline_schedule: PipelineSchedule = "1f1b"
    """Order in which a stage takes micro batches. `1f1b`: backward as soon as it can, so that few are held; `gpipe`:
    all forward, then all backward; `interleaved_1f1b`: as 1F1B, with several smaller stages on each rank.
    `interleaved_zero_bubble`, `zbv_zero_bubble` and `dual_pipe_v` compute gradients of weights later, where a rank
    would wait; under the last two each rank has two stages, and the first rank has the first and the last."""
    pipeline_virtual_stages: int = Field(default=1, ge=1, le=1024)
    """Stages on each rank: several with interleaved schedules, 2 in a V. More: a rank waits less while the first and last micro
    batches are elsewhere, holds more of them, and sends more often."""
    expert_parallel: int = Field(default=1, ge=1, le=4096)
    """Adjacent ranks of `dp_shard` that divide each layer's experts. More: a rank gathers, reduces and computes
    fewer experts, and tokens travel to the ranks of theirs and back in each pass."""
    reshard_after_forward: bool | int = True
    """True frees gathered parameters after forward and gathers again in backward; False keeps them;
    an integer reshards to groups of that size."""
    forward_prefetch: int = Field(default=0, ge=0, le=8)
    """Units gathered ahead in forward, beyond the one FSDP2 overlaps by itself."""
    backward_prefetch: int = Field(default=1, ge=0, le=8)
    """Units gathered ahead in backward. 1 is FSDP2's own behaviour."""
    blocks_per_unit: int = Field(default=1, ge=1)
    """Repeated blocks sharded as one unit. More: fewer, larger collectives and more memory gathered at once."""
    cpu_offload: bool = False
    """Shards, gradients and optimizer state live in host memory."""
    pin_memory: bool = True
    """Whether offloaded shards are page-locked; without an accelerator it has no effect."""
    grad_sync: GradSync = "every"
    """`reduce_scatter` needs both axes (`set_requires_all_reduce`); `last` holds unsharded gradients."""

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
        """The policy in the words all strategies share."""
        return self.grad_sync

    @property
    def model_parallel(self) -> int:
        """See `StrategySchema`."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def stages(self) -> int:
        """See `StrategySchema`."""
        return self.pipeline_parallel

    @property
    def virtual_stages(self) -> int:
        """See `StrategySchema`."""
        return self.pipeline_virtual_stages

    @property
    def expert_ranks(self) -> int:
        """See `StrategySchema`."""
        return self.expert_parallel

    def check_blocks(self, checkpointing: Checkpointing, compiled: bool) -> None:
        """See `StrategySchema`."""
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
        """See `StrategySchema`."""
        pipeline_parallel.check_ranks(self.pipeline_parallel, ranks)
        expert_parallel.check(self.expert_parallel, self.dp_shard, self.tensor_parallel)
        if ranks % self.tensor_parallel:
            raise ValueError(
                f"tensor_parallel ({self.tensor_parallel}) must divide the number of ranks ({ranks}); use 1 or a divisor"
            )
        check_mesh(self.dp_replicate, self.dp_shard, ranks, self.tensor_parallel, self.pipeline_parallel)

    def check_cluster(self, cluster: Cluster, precision: Precision, accumulation: int) -> None:
        """See `StrategySchema`."""
        super().check_cluster(cluster, precision, accumulation)
        pipeline_parallel.check(self.pipeline_parallel, accumulation)
        pipeline_schedules.check_micro_batches(self.pipeline_schedule, self.pipeline_parallel, accumulation)

    def to_fully_shard(self) -> dict[str, Any]:
        """Keyword arguments for `fully_shard(module, mesh=…, mp_policy=…, **…)` that do not need torch objects."""
        return {"reshard_after_forward": self.reshard_after_forward}

    def to_accelerate(self, block_class: str) -> dict[str, Any]:
        """The `fsdp_config` section of an Accelerate configuration file (FSDP2).

        Accelerate has no words for prefetch depth, blocks per unit, gradient sync policy or resharding to a group.
        """
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
        """See `StrategySchema`; Trainer wants FSDP's own activation checkpointing, not Trainer's argument."""
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
        """Return the configuration that Accelerate 1.15 runs: its own prefetch, a unit per block, and gradients
        reduced each time or once."""
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
        """The strategy in words."""
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
