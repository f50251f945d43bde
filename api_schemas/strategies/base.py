"""Common interface and words of all strategies."""

from dataclasses import dataclass
from typing import Any, Literal

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.workload import Precision, Workload

Checkpointing = Literal["none", "selective", "full"]
"""Activation checkpointing of the repeated blocks.

`selective` keeps the results of matrix products and attention and recomputes the rest (PyTorch's selective
activation checkpointing, the policy torchtitan calls `op`); `full` keeps only each block's input.
"""

_ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}


def checkpointing_words(mode: Checkpointing, every: int) -> str:
    """Describe checkpointing: `full checkpointing`, `full checkpointing of every 2nd block`."""
    return f"{mode} checkpointing" + (f" of every {_ORDINALS.get(every, f'{every}th')} block" if every > 1 else "")


GradSync = Literal["every", "reduce_scatter", "last"]
"""Time at which gradients are reduced while accumulating: every micro batch; every micro batch within the shard
group and once across replicate groups; or once, after the last micro batch (unsharded gradients are then held)."""


@dataclass(frozen=True)
class TrainerStep:
    """Arguments of Hugging Face's Trainer besides a strategy's own fields."""

    workload: Workload
    micro_batch: int
    accumulation: int
    checkpoints: bool
    """Whether Trainer, not the caller, recomputes whole blocks in backward."""
    block_class: str | None
    """Class of the repeated block; None: Trainer asks the model for it."""

    def sync_each_batch(self, policy: GradSync) -> dict[str, Any]:
        """Return arguments that make Accelerate reduce gradients at each micro batch; by default it reduces once a
        step."""
        if policy != "every" or self.accumulation == 1:
            return {}
        return {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}}

    def checkpointing(self) -> dict[str, Any]:
        """Return Trainer's own arguments for activation checkpointing."""
        if not self.checkpoints:
            return {}
        return {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": False}}


class StrategySchema(Schema):
    """Interface of every strategy for configurations, baselines, the predictor and the exports."""

    @property
    def compiles(self) -> bool:
        """Whether the backend compiles the model by itself."""
        return False

    @property
    def model_parallel(self) -> int:
        """Ranks that compute one copy of the model together, on the same samples."""
        return 1

    @property
    def stages(self) -> int:
        """Pipeline stages among these ranks, each with blocks of its own."""
        return 1

    @property
    def virtual_stages(self) -> int:
        """Stages on each rank of the pipeline."""
        return 1

    @property
    def expert_ranks(self) -> int:
        """Adjacent ranks that divide the experts of a layer, each with samples of its own."""
        return 1

    def check_blocks(self, checkpointing: Checkpointing, compiled: bool) -> None:
        """Reject what the backend cannot do with the model's blocks.

        Raises:
            ValueError: names the field and the remedy.
        """

    def check_ranks(self, ranks: int) -> None:
        """Reject groups whose sizes do not divide the ranks.

        Raises:
            ValueError: names the field and the remedy.
        """

    def check_cluster(self, cluster: Cluster, precision: Precision, accumulation: int) -> None:
        """Reject a configuration that cannot run on the cluster, or would train something else.

        Raises:
            ValueError: names the field and the remedy.
        """
        self.check_ranks(cluster.world_size)

    def to_training_arguments(self, step: TrainerStep) -> dict[str, Any] | None:
        """Return fields of Hugging Face `TrainingArguments` (transformers 5); None: Trainer has no such backend."""
        return None


def check_mesh(replicate: int, shard: int, ranks: int, tensor: int = 1, stages: int = 1) -> None:
    """Check the size of a mesh; raises ValueError where it differs from the number of ranks."""
    if replicate * shard * tensor * stages != ranks:
        names, sizes = "dp_replicate × dp_shard", f"{replicate} × {shard}"
        for name, size in (("tensor_parallel", tensor), ("pipeline_parallel", stages)):
            if size > 1:
                names, sizes = f"{names} × {name}", f"{sizes} × {size}"
        raise ValueError(
            f"{names} ({sizes}) must equal the number of ranks ({ranks}); "
            f"choose factors of it, such as dp_replicate 1, dp_shard {max(1, ranks // (tensor * stages))}"
        )
