"""Context parallelism: valid numbers of ranks that share each sample."""

from collections.abc import Callable

from shardtune.api_schemas.divisors import divisors
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import Workload


def check(
    size: int,
    cluster: Cluster,
    workload: Workload,
    model: ModelSpec | None = None,
    model_summary: ModelSummary | None = None,
    split: int = 1,
) -> None:
    """Reject a `context_parallel` size that does not divide the workload, or that would change the result of the
    training, as far as is known. `split` is the number of ranks that split the model.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size == 1:
        return
    why = _obstacle(size, cluster, workload, split)
    if why is None and model is not None and model.is_own:
        why = "takes a part of every sample, and your own code makes the samples and the loss; use 1"
    if why is not None:
        raise _rejected(size, why)
    if model_summary is not None:
        check_heads(size, model_summary.context_heads, model_summary.context_note)


def check_heads(size: int, heads: int | None, note: str | None) -> None:
    """Reject a `context_parallel` size that the summary of the model does not allow: it must divide `context_heads`,
    and `context_note` says why no size is possible.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size == 1 or (heads is not None and heads % size == 0):
        return
    if note is not None:
        raise _rejected(size, f"is not for this model: {note}; use 1")
    if heads is None:
        raise _rejected(size, "is only for models whose attention a worker has looked at; use 1")
    raise _rejected(
        size,
        f"must divide the heads of queries and of keys, whose greatest common divisor is {heads}; use 1 or a divisor",
    )


def legal_divisors(ranks: int, check_size: Callable[[int], None]) -> tuple[tuple[int, ...], str | None]:
    """Return those divisors of a number of ranks that pass a check (a function that raises ValueError if they fail),
    and the error text for the first divisor that fails. The text is None if all pass."""
    legal, why_not = [], None
    for size in divisors(ranks):
        try:
            check_size(size)
            legal.append(size)
        except ValueError as error:
            why_not = why_not or str(error)
    return tuple(legal), why_not


def _obstacle(size: int, cluster: Cluster, workload: Workload, split: int) -> str | None:
    ranks, length, batch = cluster.world_size, workload.sequence_length, workload.global_batch
    if ranks % size:
        return f"must divide the number of ranks ({ranks}); use 1 or a divisor"
    if length % size:
        return f"must divide workload.sequence_length ({length}); use 1 or a divisor"
    if workload.precision is not None and workload.precision.autocast:
        return f"trains the same as one process under other precisions, and nobody has looked under {workload.precision.name!r}; use 1"
    if workload.attention != "sdpa":
        return f"shares out the heads of sdpa, not of workload.attention ({workload.attention!r}); use 1 or sdpa"
    groups = ranks // (size * split)
    if groups == 0 or batch % groups:
        return f"leaves {groups} groups of ranks, which must divide global_batch ({batch}); use more ranks to a sample"
    return None


def _rejected(size: int, why: str) -> ValueError:
    return ValueError(f"context_parallel ({size}) {why}")
