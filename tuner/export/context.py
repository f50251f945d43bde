"""Context parallelism in exported files: lines of `train_snippet.py`, and notes for programs that cannot express it."""

from typing import Any

from shardtune.tuner.export import losses
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill, indent

IMPORTS = (
    "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh",
    "from torch.distributed._functional_collectives import all_to_all_single_autograd",
    "from torch.nn.functional import cross_entropy, pad",
    "from transformers import AttentionInterface, AttentionMaskInterface",
    "from transformers.integrations.sdpa_attention import sdpa_attention_forward",
)


def is_shared(source: ExportSource) -> bool:
    """Whether several ranks share samples in the exported configuration (context parallel)."""
    return source.config.context_parallel > 1


def constants(source: ExportSource) -> list[str]:
    """Line of `train_snippet.py` that defines the number of context parallel ranks; empty where ranks share no
    samples."""
    if not is_shared(source):
        return []
    return [
        f"CONTEXT = {source.config.context_parallel}  # neighbouring ranks that share samples, a part of each per rank"
    ]


def helpers(source: ExportSource) -> str:
    """Source of the functions that `train_snippet.py` defines for context parallelism; empty where ranks share no
    samples."""
    if not is_shared(source):
        return ""
    # The ranks that split the model are next to each other, within those that share a sequence.
    split = source.config.strategy.model_parallel > source.config.strategy.stages
    return fill(
        "context_parallel",
        axes="(RANKS // (CONTEXT * TENSOR), CONTEXT, TENSOR)" if split else "(RANKS // CONTEXT, CONTEXT)",
        names='("data", "context", "tensor")' if split else '("data", "context")',
        total=indent(losses.total(source), 4),
        own="dist.get_rank() // TENSOR % CONTEXT" if split else "dist.get_rank() % CONTEXT",
    )


def loss(source: ExportSource, model: str) -> str:
    """Line of `train_snippet.py` that runs the model and computes the loss."""
    return (
        f"loss = loss_of({model}, tokens)"
        if is_shared(source) or losses.is_chunked(source)
        else f"loss = {model}(input_ids=tokens, labels=tokens).loss"
    )


def accelerate_notes(source: ExportSource) -> list[str]:
    """Notes on context parallelism for a user's own script under Accelerate."""
    if not is_shared(source):
        return []
    return [
        f"context_parallel={source.config.context_parallel}, as measured, cannot be expressed in Accelerate: take share_attention, "
        "loss_of and the data's rank from train_snippet.py, and prepare no data loader, which would give each rank samples of its own"
    ]


def torchtitan_mesh(source: ExportSource, values: dict[str, Any]) -> dict[str, Any]:
    """Fields of torchtitan's device mesh (`values`) with the number of context parallel ranks added.

    Raises:
        ValueError: the ranks cannot form torchtitan's mesh.
    """
    size, shard = source.config.context_parallel, int(values["data_parallel_shard_degree"])
    if size == 1:
        return values
    length, number = source.workload.sequence_length, f"context_parallel ({size})"
    # torchtitan 0.3 shards over `data_parallel_shard_degree` × `context_parallel_degree`.
    if shard % size:
        raise ValueError(
            f"{number} is an axis over which torchtitan shards, so it must divide dp_shard ({shard}); export another trial of "
            "fsdp2 with --which NUMBER"
        )
    if length % (2 * size):
        raise ValueError(
            f"{number}: torchtitan needs a sequence ({length}) of two equal parts a rank; take the standard files"
        )
    return values | {"data_parallel_shard_degree": shard // size, "context_parallel_degree": size}


def torchtitan_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on differences between torchtitan's context parallelism and the measured one."""
    if not is_shared(source):
        return ()
    return ("context_parallel: exchanges of heads (Ulysses) were measured; torchtitan sends keys and values in a ring",)
