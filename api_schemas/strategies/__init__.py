"""Training configurations: one strategy (backend) and the settings common to all strategies. Each strategy formats its
own settings for the backend, by the same method for measurements and exports."""

from pydantic import model_validator

from shardtune.api_schemas.knobs import declarations
from shardtune.api_schemas.strategies.base import Checkpointing, GradSync, checkpointing_words
from shardtune.api_schemas.strategies.ddp import DdpConfig
from shardtune.api_schemas.strategies.fields import activation_offload, memory_budget, mlp_slices, selective_keeps
from shardtune.api_schemas.strategies.fields.offload import Offload
from shardtune.api_schemas.strategies.fields.selective_keeps import SelectiveKeeps
from shardtune.api_schemas.strategies.fsdp1 import Fsdp1Config
from shardtune.api_schemas.strategies.fsdp2 import Fsdp2Config
from shardtune.api_schemas.strategies.loss_fields import LossFields
from shardtune.api_schemas.strategies.losses import Loss, check_compile, loss_words
from shardtune.api_schemas.strategies.trial_fields import NumaBinding, Strategy
from shardtune.api_schemas.strategies.zero import ZeroConfig
from shardtune.api_schemas.training.sample_plan import Split
from shardtune.api_schemas.training.workload import gradient_accumulation

__all__ = [
    "Checkpointing",
    "DdpConfig",
    "Fsdp1Config",
    "Fsdp2Config",
    "GradSync",
    "Loss",
    "NumaBinding",
    "Offload",
    "SelectiveKeeps",
    "Strategy",
    "TrialConfig",
    "ZeroConfig",
]


class TrialConfig(LossFields):
    """Training configuration that a trial measures. It is one point of the search space. Its gradient accumulation
    follows from the workload's global batch."""

    @model_validator(mode="after")
    def _legal(self) -> "TrialConfig":
        self.strategy.check_blocks(self.activation_checkpointing, self.compile)
        selective_keeps.check(self.selective_keeps, self.activation_checkpointing)
        compiling_field = "compile" if self.compile else "deepcompile" if self.strategy.compiles else None
        if self.activation_offload:
            activation_offload.check(self.activation_checkpointing, compiling_field, self.strategy.stages)
        tensor = self.strategy.model_parallel // self.strategy.stages
        mlp_slices.check(self.mlp_slices, compiling_field, tensor, self.strategy.stages)
        memory_budget.check(
            self.activation_memory_budget,
            self.activation_checkpointing,
            self.compile,
            gathers_in_blocks=isinstance(self.strategy, ZeroConfig) and self.strategy.stage == 3,
        )
        check_compile(self.loss_compile, self.loss)
        if self.has_chunked_loss and self.strategy.compiles:
            raise ValueError(
                "loss ('chunked') with deepcompile (true) would compile the head's own backward, which nobody has tried; "
                "set one of them to its default"
            )
        if self.context_parallel > 1 and compiling_field is not None:
            raise ValueError(
                f"{compiling_field} (true) with context_parallel ({self.context_parallel}) would compile attention's exchanges, which "
                "nobody has tried; set one of them to its default"
            )
        return self

    @property
    def sharing(self) -> int:
        """Number of adjacent ranks that train on the same samples: context parallel × tensor parallel × pipeline
        stages."""
        return self.context_parallel * self.strategy.model_parallel

    def data_ranks(self, ranks: int) -> int:
        """Return the number of data-parallel groups: groups of ranks that each process different samples."""
        return ranks // self.sharing

    def accumulation(self, global_batch: int, ranks: int) -> int:
        """Return the number of micro batches per optimizer step on each rank.

        Raises:
            ValueError: the global batch is not divisible by micro batch × data-parallel groups; the message gives
                the nearest valid global batches.
        """
        return gradient_accumulation(global_batch, self.micro_batch, self.data_ranks(ranks))

    def split(self, global_batch: int, ranks: int) -> Split:
        """Return the division of a global batch among data-parallel groups and their micro batches.

        Raises:
            ValueError: as in `accumulation`.
        """
        return Split(self.micro_batch, self.data_ranks(ranks), self.accumulation(global_batch, ranks))

    @property
    def checkpoints_whole_blocks(self) -> bool:
        """Whether activation checkpointing keeps only the input of every block. Other libraries mean this when they say
        that checkpointing is enabled."""
        return self.activation_checkpointing == "full" and self.checkpoint_every == 1

    @property
    def compiles(self) -> bool:
        """Whether the configuration compiles the model, its blocks or its loss, which makes the first steps slow."""
        return self.compile or self.loss_compile or self.strategy.compiles

    def without_compile(self) -> "TrialConfig":
        """Return a copy whose blocks and loss are not compiled. Its blocks have no budget of activations."""
        return self.model_copy(update={"compile": False, "activation_memory_budget": 1.0, "loss_compile": False})

    @property
    def offloads_optimizer(self) -> bool:
        """Whether the optimizer states are kept in host memory and updated there, by DeepSpeed's CPU Adam."""
        return isinstance(self.strategy, ZeroConfig) and self.strategy.offload_optimizer is not None

    @property
    def backend(self) -> str:
        """Backend of the configuration (kind of its strategy): `ddp`, `zero`, `fsdp1` or `fsdp2`."""
        return self.strategy.kind

    def describe(self) -> str:
        """Return a one-line description of the configuration for tables."""
        parts = [self.strategy.describe()]
        if self.activation_checkpointing != "none":
            parts.append(checkpointing_words(self.activation_checkpointing, self.checkpoint_every))
        if self.has_chunked_loss:
            parts.append(loss_words(self.loss_chunk, is_compiled=self.loss_compile))
        if self.context_parallel > 1:
            parts.append(f"context ×{self.context_parallel}")
        if self.compile:
            parts.append("compiled")
        return ", ".join([*parts, *declarations.phrases(self), f"micro batch {self.micro_batch}"])
