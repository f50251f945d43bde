"""Names that torch and NCCL give to collectives, their purpose, dtypes, and ranges of the host."""

import re

KINDS = {
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "send": "send_recv",
    "recv": "send_recv",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
"""Kinds of collectives by a part of their names without punctuation, the longer first."""

_BYTES = {
    **dict.fromkeys(("double", "long", "long int", "int64", "uint64"), 8),
    **dict.fromkeys(("float", "int", "int32", "float32", "uint32"), 4),
    **dict.fromkeys(("half", "bfloat16", "float16", "short", "short int"), 2),
    **dict.fromkeys(("byte", "char", "unsigned char", "signed char", "bool", "int8", "uint8"), 1),
}
_SMALL = 64
"""Elements of a small message: a norm, a loss or a count, never a gradient bucket."""

_COMMUNICATES = re.compile(r"^(c10d::|_?c10d_functional::|record_param_comms|gloo:|nccl:|mpi:|ucc:)", re.IGNORECASE)
_CONTAINS_OTHERS = re.compile(
    r"^((torch::)?autograd::|FSDP|DistributedDataParallel|Optimizer|ProfilerStep|shardtune::|profiler::)"
)
_OPTIMIZER = re.compile(r"^(Optimizer\.step#|shardtune::optimizer$|#* ?optimizer ?#*$)")
_DATA = re.compile(r"^(enumerate\(DataLoader\)#|shardtune::data$|#* ?(load_batch|data_load|dataloader) ?#*$)")


def collective_kind(name: str) -> str:
    """Return the kind of a kernel, an operator or torch's own name of a collective; `other` where it is unknown."""
    bare = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for part, kind in KINDS.items() if part in bare), "other")


def purpose(kind: str, elements: int | None, in_optimizer: bool) -> str:
    """Return the purpose of a collective in data parallel training.

    By kind, not by caller: parameters are gathered or broadcast, gradients reduced, and a small message is a sum that all
    ranks need. Within the optimizer a larger reduction is a late one of gradients.
    """
    if kind in ("all_gather", "broadcast") and (elements is None or elements > _SMALL or not in_optimizer):
        return "parameters"
    if kind in ("all_to_all", "send_recv"):
        return "activations"
    if elements is not None and elements <= _SMALL:
        return "small values"
    return "gradients" if kind in ("all_reduce", "reduce_scatter", "reduce") else "other"


def dtype_bytes(name: str) -> int | None:
    """Return the bytes of one element by the dtype's name in torch or C++; None where it is unknown."""
    bare = name.lower().replace("c10::", "").strip()
    return 1 if bare.startswith("float8") else _BYTES.get(bare)


def is_collective_kernel(name: str) -> bool:
    """Whether a kernel is a collective of NCCL or RCCL, whose kernels have the same names."""
    return name.startswith("nccl") or "ncclDevKernel" in name or "ncclKernel" in name


def computes(operator: str) -> bool:
    """Whether an operator computes itself: it neither communicates nor only encloses others that may wait."""
    return "::" in operator and not _COMMUNICATES.match(operator) and not _CONTAINS_OTHERS.match(operator)


def is_host_call(operator: str) -> bool:
    """Whether it is torch's own call of a collective."""
    return operator.startswith("c10d::")


def is_optimizer(range_name: str) -> bool:
    """Whether a named range is an optimizer's step: torch's, or ours, which has clipping in it too."""
    return _OPTIMIZER.match(range_name) is not None


def is_data(range_name: str) -> bool:
    """Whether a named range waits for data."""
    return _DATA.match(range_name) is not None
