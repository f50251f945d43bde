"""Common interface and types of all training strategies."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.knobs import Consumer, declarations
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.workload import Precision, Workload

Checkpointing = Literal["none", "selective", "full"]
"""Activation checkpointing of the model's repeated blocks. `selective` keeps the results of matrix products and
attention, or some of them (`selective_keeps`), and recomputes the rest (PyTorch's selective activation checkpointing);
`full` keeps only each block's input."""

_ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}


def checkpointing_words(mode: Checkpointing, every: int) -> str:
    """Describe activation checkpointing for people, such as `full checkpointing` or `full checkpointing of every 2nd
    block`."""
    return f"{mode} checkpointing" + (f" of every {_ORDINALS.get(every, f'{every}th')} block" if every > 1 else "")


GradSync = Literal["every", "reduce_scatter", "last"]
"""Time at which gradients are reduced during gradient accumulation. `every`: after each micro batch. `reduce_scatter`:
after each micro batch within the shard group, and once per step across the replicas. `last`: once, after the last micro
batch; unsharded gradients stay in memory until then."""


@dataclass(frozen=True)
class TrainerStep:
    """Settings of a training step that Hugging Face's Trainer needs in addition to the fields of a strategy."""

    workload: Workload
    micro_batch: int
    accumulation: int
    checkpoints: bool
    """Whether Trainer itself applies activation checkpointing to whole blocks. If False, the caller does."""
    block_class: str | None
    """Class name of the model's repeated block. If None, Trainer determines it from the model."""
    offloads_inputs: bool = False
    """Whether Trainer keeps the inputs of checkpointed blocks in host memory."""

    def sync_each_batch(self, policy: GradSync) -> dict[str, Any]:
        """Return the arguments with which Trainer reduces gradients after each micro batch, if the policy is `every`.
        By default, Accelerate reduces them once per step."""
        if policy != "every" or self.accumulation == 1:
            return {}
        return {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}}

    def checkpointing(self) -> dict[str, Any]:
        """Return Trainer's arguments for activation checkpointing; empty if Trainer does not apply it."""
        if not self.checkpoints:
            return {}
        offload = {"offload": True} if self.offloads_inputs else {}
        return {
            "activation_checkpointing": True,
            "activation_checkpointing_kwargs": {"use_reentrant": False, **offload},
        }


class StrategySchema(Schema):
    """Interface of every training strategy, used by configurations, baselines, the predictor and the exports."""

    flattens: ClassVar[str | None] = None
    """Reason why this backend never gives the optimizer a whole matrix, or a shard that is a part of one. None if the
    backend does."""

    def keyed(self, consumer: Consumer) -> dict[str, Any]:
        """Return the fields of an exported file that take the value of a knob unchanged, each with its value. The names
        are those of `consumer`, the program that reads the file."""
        return declarations.keyed(self, consumer)

    def calls(self, consumer: Consumer = "script") -> dict[str, Any]:
        """Return the methods of the sharded model that apply a knob, each with its argument. Knobs at their default
        need no call."""
        return declarations.calls(self, consumer)

    def as_run_by(self, consumer: Consumer, **changes: Any) -> Self:
        """Return the strategy with which `consumer` (the program that reads an export) trains. Knobs that it cannot
        express have its own values. `changes` are values that depend on more than one knob."""
        return self.model_validate({**self.model_dump(), **declarations.lost_fields(self, consumer), **changes})

    @property
    def compiles(self) -> bool:
        """Whether the backend itself compiles the model, as DeepCompile does."""
        return False

    @property
    def model_parallel(self) -> int:
        """Number of ranks that together compute one copy of the model, on the same samples. It is 1 without tensor or
        pipeline parallelism."""
        return 1

    @property
    def stages(self) -> int:
        """Number of pipeline stages into which the model is divided; 1 without pipeline parallelism."""
        return 1

    @property
    def virtual_stages(self) -> int:
        """Number of pipeline stages on each rank."""
        return 1

    @property
    def expert_ranks(self) -> int:
        """Number of adjacent ranks that divide the experts of a layer among them; each of these ranks trains on samples
        of its own."""
        return 1

    def check_blocks(self, checkpointing: Checkpointing, compiled: bool) -> None:
        """Reject settings that the backend cannot apply to the model's blocks.

        Raises:
            ValueError: names the field and the remedy.
        """

    def check_ranks(self, ranks: int) -> None:
        """Reject sizes of parallel groups that do not divide the number of ranks.

        Raises:
            ValueError: names the field and the remedy.
        """

    def check_cluster(self, cluster: Cluster, precision: Precision, accumulation: int) -> None:
        """Reject a configuration that cannot run on the cluster, or with which the training would give another result
        than the workload defines.

        Raises:
            ValueError: names the field and the remedy.
        """
        self.check_ranks(cluster.world_size)

    def to_training_arguments(self, step: TrainerStep) -> dict[str, Any] | None:
        """Return the fields of Hugging Face `TrainingArguments` (transformers 5) for this strategy; None if Trainer
        does not support the backend."""
        return None


def check_mesh(replicate: int, shard: int, ranks: int, tensor: int = 1, stages: int = 1) -> None:
    """Check that the product of the sizes of all parallel axes equals the number of ranks.

    Raises:
        ValueError: the product differs; the message names the axes and a valid choice.
    """
    if replicate * shard * tensor * stages != ranks:
        names, sizes = "dp_replicate × dp_shard", f"{replicate} × {shard}"
        for name, size in (("tensor_parallel", tensor), ("pipeline_parallel", stages)):
            if size > 1:
                names, sizes = f"{names} × {name}", f"{sizes} × {size}"
        raise ValueError(
            f"{names} ({sizes}) must equal the number of ranks ({ranks}); "
            f"choose factors of it, such as dp_replicate 1, dp_shard {max(1, ranks // (tensor * stages))}"
        )
