"""Tensor parallelism: valid numbers of ranks that split a model, and the reasons why other numbers are invalid."""

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import Workload


def check(
    size: int,
    context: int,
    cluster: Cluster,
    workload: Workload,
    model: ModelSpec | None = None,
    model_summary: ModelSummary | None = None,
    stages: int = 1,
) -> None:
    """Reject a `tensor_parallel` size that does not divide the ranks, the workload or the model, as far as they are
    known. `context` is the number of ranks that share each sequence, `stages` the number of pipeline stages.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size == 1:
        return
    why = _obstacle(size, context, cluster.world_size // stages, workload)
    if why is None and model is not None and model.is_own:
        why = "splits models by transformers' plans, and your own code makes this one; use 1"
    if why is not None:
        raise _rejected(size, why)
    if model_summary is not None:
        check_widths(size, context, model_summary.tensor_divisor, model_summary.tensor_note)


def check_widths(size: int, context: int, divisor: int | None, note: str | None) -> None:
    """Reject a `tensor_parallel` size that does not divide the heads or sizes of the model, as its summary states them
    (`tensor_divisor`, `tensor_note`).

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size == 1:
        return
    if note is not None:
        raise _rejected(size, f"is not for this model: {note}; use 1")
    if divisor is None:
        raise _rejected(size, "is only for models whose plan a worker has looked at; use 1")
    if divisor % (size * context):
        number = f"{size} × context_parallel ({context})" if context > 1 else "it"
        raise _rejected(
            size,
            f"does not come out: {number} must divide heads, heads of keys and split widths, whose greatest common divisor is "
            f"{divisor}; use 1 or a divisor",
        )


def _obstacle(size: int, context: int, ranks: int, workload: Workload) -> str | None:
    """Return the reason why a `tensor_parallel` size does not fit the ranks or the workload; None if it fits. `ranks`
    is the number of ranks of one pipeline stage."""
    length, batch, sharing = workload.sequence_length, workload.global_batch, size * context
    times = f" times context_parallel ({context})" if context > 1 else ""
    if ranks % sharing:
        return f"{times} must divide the number of ranks ({ranks}); use 1 or a divisor".lstrip()
    if length % sharing:
        return f"{times} must divide workload.sequence_length ({length}); use 1 or a divisor".lstrip()
    if workload.precision is not None and workload.precision.autocast:
        return f"trains the same as one process under other precisions, and nobody has looked under {workload.precision.name!r}; use 1"
    if workload.optimizer.needs_matrices:
        return (
            f"splits the matrices that workload.optimizer ({workload.optimizer.title}) updates whole; use 1, or adamw"
        )
    if batch % (ranks // sharing):
        groups = ranks // sharing
        return f"leaves {groups} groups of ranks, which must divide global_batch ({batch}); use more ranks to a model"
    return None


def _rejected(size: int, why: str) -> ValueError:
    return ValueError(f"tensor_parallel ({size}) {why}")
