"""Tensor parallelism in exported files: lines of `train_snippet.py`, and notes for programs that cannot express it."""

from typing import Any

from shardtune.tuner.export import losses
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill

IMPORTS = (
    "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh",
    "from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor",
    "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel",
    "from torch.distributed.tensor.parallel import loss_parallel, parallelize_module",
    "from torch.distributed.tensor.parallel.style import ParallelStyle",
)
STANDARD = ("fnmatch", "functools")


def size(source: ExportSource) -> int:
    """Number of ranks that split each block of the model in the exported configuration (tensor parallel)."""
    return source.config.strategy.model_parallel // source.config.strategy.stages


def is_split(source: ExportSource) -> bool:
    """Whether several ranks split each block of the model in the exported configuration (tensor parallel)."""
    return size(source) > 1


def constants(source: ExportSource) -> list[str]:
    """Line of `train_snippet.py` that defines the number of tensor parallel ranks; empty where ranks do not split the
    model."""
    if not is_split(source):
        return []
    return [f"TENSOR = {size(source)}  # neighbouring ranks that split the model"]


def helpers(source: ExportSource) -> str:
    """Source of the functions that `train_snippet.py` defines for tensor parallelism; empty where ranks do not split
    the model."""
    if not is_split(source):
        return ""
    # A head that computes the loss itself returns one number, the same on each rank.
    output = "output_layouts=Replicate(), " if losses.is_chunked(source) else ""
    return fill("tensor_parallel", head_output=output)


def accelerate_notes(source: ExportSource) -> list[str]:
    """Notes on tensor parallelism for a user's own script under Accelerate."""
    if not is_split(source):
        return []
    return [
        f"tensor_parallel={size(source)}, as measured: Accelerate 1.15 has tp_size, and fails with transformers 5.23 for want of "
        "ReplicateParallel; take split_model, the mesh and the data's rank from train_snippet.py"
    ]


def torchtitan_mesh(source: ExportSource) -> dict[str, Any]:
    """Fields of torchtitan's device mesh for tensor parallelism, by name."""
    return {"tensor_parallel_degree": size(source)} if is_split(source) else {}


def torchtitan_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on differences between torchtitan's tensor parallelism and the measured one."""
    if not is_split(source):
        return ()
    return ("tensor_parallel: the sequence was split at the first block; torchtitan splits it at the embedding",)
