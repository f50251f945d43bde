"""Training configurations: one strategy (backend) and the settings common to all strategies. Each strategy formats its
own settings for the backend, by the same method for measurements and exports."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies.base import Checkpointing, GradSync, checkpointing_words
from shardtune.api_schemas.strategies.ddp import DdpConfig
from shardtune.api_schemas.strategies.fsdp1 import Fsdp1Config
from shardtune.api_schemas.strategies.fsdp2 import Fsdp2Config
from shardtune.api_schemas.strategies.losses import DEFAULT_CHUNK, Loss, loss_words
from shardtune.api_schemas.strategies.zero import Offload, ZeroConfig
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
    "Strategy",
    "TrialConfig",
    "ZeroConfig",
]

NumaBinding = Literal["none", "node", "exclusive"]
Strategy = Annotated[DdpConfig | ZeroConfig | Fsdp1Config | Fsdp2Config, Field(discriminator="kind")]


class TrialConfig(Schema):
    """Training configuration that a trial measures: a point of the search space. The workload's global batch determines
    gradient accumulation."""

    strategy: Strategy
    micro_batch: int = Field(default=1, ge=1)
    """Samples per forward pass on each rank; ranks that share samples process the same ones."""
    context_parallel: int = Field(default=1, ge=1, le=4096)
    """Number of adjacent ranks that share samples: each processes an equal part of the sequence, and attention
    exchanges positions for heads (Ulysses). A larger value fits longer sequences; each block exchanges four times in
    forward and four times in backward."""
    activation_checkpointing: Checkpointing = "none"
    checkpoint_every: int = Field(default=1, ge=1)
    """Spacing of checkpointed blocks, counted from the first; 1: every block. A larger value recomputes less in
    backward and uses more memory."""
    loss: Loss = "full"
    """Computation of the loss: from the logits of a whole micro batch, or in chunks of tokens whose logits are computed
    again in backward. Chunks need less memory and one more product with the output head."""
    loss_chunk: int = Field(default=DEFAULT_CHUNK, ge=16, le=1 << 20)
    """Number of tokens in a chunk of the loss. Smaller chunks need less memory and add to the head's gradient more
    often."""
    compile: bool = False
    """Whether to apply `torch.compile` to each repeated block."""
    malloc: Literal["default", "keep"] = "default"
    """Treatment of freed host memory: returned by glibc's default rules, or kept by the process. Keeping it avoids page
    faults and uses more memory."""
    threads: int = Field(default=0, ge=0, le=1024)
    """Number of CPU threads of each rank; 0: OMP_NUM_THREADS if the worker sets it, else the node's cores divided by
    its ranks."""
    expandable_segments: bool = False
    """Whether the CUDA allocator grows existing segments instead of adding new ones: less fragmentation, slower first
    steps."""
    max_connections: int = Field(default=0, ge=0, le=32)
    """Number of hardware queues of a GPU (CUDA_DEVICE_MAX_CONNECTIONS), which affects the order of kernels and
    collectives; 0: the driver's default of 8."""
    numa_binding: NumaBinding = "none"
    """CPU cores to which each GPU's rank is bound: any of the worker's; those of the GPU's NUMA node; or an exclusive
    part of these (torchrun's `--numa-binding`). Binding keeps host memory near; a rank that needs more cores must
    wait."""

    @model_validator(mode="after")
    def _legal(self) -> "TrialConfig":
        self.strategy.check_blocks(self.activation_checkpointing, self.compile)
        if self.loss == "chunked" and self.strategy.compiles:
            raise ValueError(
                "loss ('chunked') with deepcompile (true) would compile the head's own backward, which nobody has tried; "
                "set one of them to its default"
            )
        if self.context_parallel > 1 and self.compiles:
            name = "compile" if self.compile else "deepcompile"
            raise ValueError(
                f"{name} (true) with context_parallel ({self.context_parallel}) would compile attention's exchanges, which "
                "nobody has tried; set one of them to its default"
            )
        return self

    @property
    def sharing(self) -> int:
        """Number of adjacent ranks that train the same samples (context parallel × tensor parallel × pipeline stages)."""
        return self.context_parallel * self.strategy.model_parallel

    def data_ranks(self, ranks: int) -> int:
        """Return the number of data-parallel groups: groups of ranks that each process different samples."""
        return ranks // self.sharing

    def accumulation(self, global_batch: int, ranks: int) -> int:
        """Return the micro batches per optimizer step on each rank.

        Raises:
            ValueError: the global batch is not divisible by micro batch × data-parallel groups; the message gives
                the nearest valid global batches.
        """
        return gradient_accumulation(global_batch, self.micro_batch, self.data_ranks(ranks))

    @property
    def checkpoints_whole_blocks(self) -> bool:
        """Whether activation checkpointing keeps only the input of every block, which is how libraries define enabled
        checkpointing."""
        return self.activation_checkpointing == "full" and self.checkpoint_every == 1

    @property
    def compiles(self) -> bool:
        """Whether the configuration compiles the model, which makes the first steps slow."""
        return self.compile or self.strategy.compiles

    @property
    def backend(self) -> str:
        """Backend of the configuration (kind of its strategy): `ddp`, `zero`, `fsdp1` or `fsdp2`."""
        return self.strategy.kind

    def describe(self) -> str:
        """Return a one-line description of the configuration for tables."""
        parts = [self.strategy.describe()]
        if self.activation_checkpointing != "none":
            parts.append(checkpointing_words(self.activation_checkpointing, self.checkpoint_every))
        if self.loss == "chunked":
            parts.append(loss_words(self.loss_chunk))
        if self.context_parallel > 1:
            parts.append(f"context ×{self.context_parallel}")
        if self.compile:
            parts.append("compiled")
        parts += self._environment_words()
        return ", ".join([*parts, f"micro batch {self.micro_batch}"])

    def _environment_words(self) -> list[str]:
        words = {
            "freed memory kept": self.malloc == "keep",
            f"{self.threads} thread{'s' if self.threads > 1 else ''} a rank": self.threads,
            "expandable segments": self.expandable_segments,
            f"device connections {self.max_connections}": self.max_connections,
            "kept to its GPU's NUMA node": self.numa_binding == "node",
            "kept to cores of its own": self.numa_binding == "exclusive",
        }
        return [word for word, is_said in words.items() if is_said]
