"""Classify the names that torch and NCCL use in traces: collectives and their purpose, dtypes, and named ranges of the
host."""

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
"""Kinds of collectives. Each key is a part of a collective's name, in lower case and without punctuation; longer parts
come first."""

_BYTES = {
    **dict.fromkeys(("double", "long", "long int", "int64", "uint64"), 8),
    **dict.fromkeys(("float", "int", "int32", "float32", "uint32"), 4),
    **dict.fromkeys(("half", "bfloat16", "float16", "short", "short int"), 2),
    **dict.fromkeys(("byte", "char", "unsigned char", "signed char", "bool", "int8", "uint8"), 1),
}
_SMALL = 64
"""Maximum number of elements in a message that counts as small: that of a norm, a loss or a count, and never a gradient
bucket."""

_COMMUNICATES = re.compile(r"^(c10d::|_?c10d_functional::|record_param_comms|gloo:|nccl:|mpi:|ucc:)", re.IGNORECASE)
_CONTAINS_OTHERS = re.compile(
    r"^((torch::)?autograd::|FSDP|DistributedDataParallel|Optimizer|ProfilerStep|shardtune::|profiler::)"
)
_OPTIMIZER = re.compile(r"^(Optimizer\.step#|shardtune::optimizer$|#* ?optimizer ?#*$)")
_DATA = re.compile(r"^(enumerate\(DataLoader\)#|shardtune::data$|#* ?(load_batch|data_load|dataloader) ?#*$)")


def collective_kind(name: str) -> str:
    """Return the kind of a collective from the name of a kernel, an operator or torch's own call; `other` if unknown."""
    bare = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for part, kind in KINDS.items() if part in bare), "other")


def purpose(kind: str, elements: int | None, in_optimizer: bool) -> str:
    """Return the purpose of a collective in data-parallel training, which follows from its kind: gathers and broadcasts
    transfer parameters, reductions transfer gradients. A small message is a value that all ranks need. A larger
    reduction within the optimizer counts as a late reduction of gradients."""
    if kind in ("all_gather", "broadcast") and (elements is None or elements > _SMALL or not in_optimizer):
        return "parameters"
    if kind in ("all_to_all", "send_recv"):
        return "activations"
    if elements is not None and elements <= _SMALL:
        return "small values"
    return "gradients" if kind in ("all_reduce", "reduce_scatter", "reduce") else "other"


def dtype_bytes(name: str) -> int | None:
    """Return the bytes of one element by the dtype's name in torch or C++; None if unknown."""
    bare = name.lower().replace("c10::", "").strip()
    return 1 if bare.startswith("float8") else _BYTES.get(bare)


def is_collective_kernel(name: str) -> bool:
    """Whether a kernel belongs to a collective of NCCL or RCCL (both use the same kernel names)."""
    return name.startswith("nccl") or "ncclDevKernel" in name or "ncclKernel" in name


def computes(operator: str) -> bool:
    """Whether an operator computes something itself, that is, whether it is neither a collective nor a wrapper around
    other operators."""
    return "::" in operator and not _COMMUNICATES.match(operator) and not _CONTAINS_OTHERS.match(operator)


def is_host_call(operator: str) -> bool:
    """Whether an event is torch's own host call of a collective."""
    return operator.startswith("c10d::")


def is_optimizer(range_name: str) -> bool:
    """Whether a named range in the trace is an optimizer step: one that torch has named, or one that Shardtune has
    named and that includes gradient clipping."""
    return _OPTIMIZER.match(range_name) is not None


def is_data(range_name: str) -> bool:
    """Whether a named range is time spent waiting for data."""
    return _DATA.match(range_name) is not None
