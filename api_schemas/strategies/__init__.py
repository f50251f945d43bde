"""Training configurations: one strategy and the knobs every strategy has.

Each strategy renders itself for its backend; the rank that measures and the exporter call the same method.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies.base import Checkpointing, GradSync, checkpointing_words
from shardtune.api_schemas.strategies.ddp import DdpConfig
from shardtune.api_schemas.strategies.fsdp1 import Fsdp1Config
from shardtune.api_schemas.strategies.fsdp2 import Fsdp2Config
from shardtune.api_schemas.strategies.zero import Offload, ZeroConfig
from shardtune.api_schemas.training.workload import gradient_accumulation

__all__ = [
    "Checkpointing",
    "DdpConfig",
    "Fsdp1Config",
    "Fsdp2Config",
    "GradSync",
    "NumaBinding",
    "Offload",
    "Strategy",
    "TrialConfig",
    "ZeroConfig",
]

NumaBinding = Literal["none", "node", "exclusive"]
Strategy = Annotated[DdpConfig | ZeroConfig | Fsdp1Config | Fsdp2Config, Field(discriminator="kind")]


class TrialConfig(Schema):
    """Point of the search space. Gradient accumulation follows from the workload's global batch."""

    strategy: Strategy
    micro_batch: int = Field(default=1, ge=1)
    """Samples per forward pass and rank; ranks that share samples take the same."""
    context_parallel: int = Field(default=1, ge=1, le=4096)
    """Adjacent ranks that share samples: each takes an equal part of the sequence, and attention exchanges positions
    for heads (Ulysses). More: longer sequences fit, and each block makes four exchanges forward and four backward."""
    activation_checkpointing: Checkpointing = "none"
    checkpoint_every: int = Field(default=1, ge=1)
    """Distance of checkpointed blocks, counted from the first; 1: all. More: less is recomputed in backward and more
    kept."""
    compile: bool = False
    """Whether to `torch.compile` each repeated block."""
    malloc: Literal["default", "keep"] = "default"
    """Treatment of freed host memory: glibc's own rules, or kept by the process. Keeping saves page faults and holds
    more."""
    threads: int = Field(default=0, ge=0, le=1024)
    """Threads of each rank; 0: OMP_NUM_THREADS where the worker has it, else the cores of the node by its ranks."""
    expandable_segments: bool = False
    """Whether the CUDA allocator grows its segments instead of adding others: less fragmentation, slower first
    steps."""
    max_connections: int = Field(default=0, ge=0, le=32)
    """Hardware queues of a GPU (CUDA_DEVICE_MAX_CONNECTIONS), which order kernels and collectives; 0: the driver's 8."""
    numa_binding: NumaBinding = "none"
    """Cores that a GPU's rank stays on: any of the worker's; those of its GPU's NUMA node; or a part of these that
    no other rank has (torchrun's `--numa-binding`). Host memory is then near, and a rank that needs more cores
    waits."""

    @model_validator(mode="after")
    def _legal(self) -> "TrialConfig":
        self.strategy.check_blocks(self.activation_checkpointing, self.compile)
        if self.context_parallel > 1 and self.compiles:
            name = "compile" if self.compile else "deepcompile"
            raise ValueError(
                f"{name} (true) with context_parallel ({self.context_parallel}) would compile attention's exchanges, which "
                "nobody has tried; set one of them to its default"
            )
        return self

    @property
    def sharing(self) -> int:
        """Adjacent ranks that train the same samples, each a part of the sequence or of the model."""
        return self.context_parallel * self.strategy.model_parallel

    def data_ranks(self, ranks: int) -> int:
        """Return the number of groups of ranks that each take samples of their own."""
        return ranks // self.sharing

    def accumulation(self, global_batch: int, ranks: int) -> int:
        """Return the micro batches per optimizer step on each rank.

        Raises:
            ValueError: as `gradient_accumulation`.
        """
        return gradient_accumulation(global_batch, self.micro_batch, self.data_ranks(ranks))

    @property
    def checkpoints_whole_blocks(self) -> bool:
        """Whether each block keeps its input only, which is what libraries mean by enabling checkpointing."""
        return self.activation_checkpointing == "full" and self.checkpoint_every == 1

    @property
    def compiles(self) -> bool:
        """Whether first steps compile, which takes long."""
        return self.compile or self.strategy.compiles

    @property
    def backend(self) -> str:
        """Kind of the strategy: `ddp`, `zero`, `fsdp1` or `fsdp2`."""
        return self.strategy.kind

    def describe(self) -> str:
        """Return the configuration in words, for tables."""
        parts = [self.strategy.describe()]
        if self.activation_checkpointing != "none":
            parts.append(checkpointing_words(self.activation_checkpointing, self.checkpoint_every))
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
