"""Peak memory of a training step: the moments at which memory can peak, and the largest of them, term by term."""

import functools
from dataclasses import dataclass, replace

import numpy as np

from shardtune.api_schemas.base import GIB
from shardtune.tuner.prediction import optimizers
from shardtune.tuner.prediction.backends import registry
from shardtune.tuner.prediction.backends.states import States
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.footprint.activations import block_bytes, logits_bytes, offloaded_inputs
from shardtune.tuner.prediction.footprint.traced_activations import outside_bytes, tail_bytes
from shardtune.tuner.prediction.model_shape import ModelShape

TERMS = (
    "parameters", "masters", "gradients", "optimizer", "gathered", "buckets", "activations", "recomputation", "logits",
    "step", "offloaded",
)  # fmt: skip
MOMENTS = (
    "loss",
    "first block of backward",
    "second block of backward",
    "last block but one of backward",
    "last block of backward",
    "end of backward",
    "optimizer step",
)
_IS_REDUCING = np.array([False, False, True, True, True, False, False])
"""Flags of those `MOMENTS` in backward at which the buffers of an FSDP unit's gradient reduction are reserved: while the
reduction runs, or while the next block computes."""

_STATES = "ZeRO (arXiv:1910.02054), section 3.1; as torch 2.13 and DeepSpeed 0.19.8 keep them"
SOURCES = {
    "parameters": _STATES,
    "masters": _STATES,
    "gradients": _STATES,
    "optimizer": _STATES + "; the values that the optimizer keeps of each parameter",
    "gathered": "torch 2.13 _fsdp_param_group.py, DeepSpeed 0.19.8 partitioned_param_coordinator.py; DDP: cast copies",
    "buckets": "torch 2.13 _fsdp_collectives.py and reducer.cpp, DeepSpeed 0.19.8 stage_1_and_2.py and stage3.py",
    "activations": "counted in transformers 5's blocks after Korthikanti et al. (arXiv:2205.05198), equations 1-2",
    "recomputation": "one block's saved tensors and gradients, same source",
    "logits": "logits and three fp32 values each: log-softmax, its gradient, the loss's gradient",
    "step": "temporaries of torch's optimizers; DeepSpeed's fp32 gradient partition",
    "offloaded": "CPU ranks only: there the host is the device",
    "fragmentation": "pools of other streams and of blocks too small for the logits (docs/explanation/prediction.md)",
    "device context": "0.5-1.8 GiB by torch version; published constants",
    "communication library": "NCCL, 1-2 GiB; published constants",
}

CONTEXT_GIB = 0.8
"""GiB of the CUDA context and library workspaces: 0.5-1.8 GiB by torch version (published constants)."""
COMMUNICATION_GIB = 1.2
"""GiB of NCCL's buffers and channels once ranks communicate: 1-2 GiB (published constants)."""


@dataclass(frozen=True)
class MemoryTable:
    """Predicted bytes of memory for each candidate. `terms` divides the bytes at the peak moment into parts, which add
    up to `allocated`."""

    terms: dict[str, Array]
    moment: Array
    """Index in MOMENTS of the moment of a step at which memory peaks, for each candidate."""
    allocated: Array
    """Bytes of tensors that exist at the peak (torch's max_memory_allocated)."""
    fragmentation: Array
    """Bytes that the caching allocator reserves beyond the allocated tensors (fragmentation)."""
    context: Array
    communication: Array
    host: Array
    """Predicted bytes in host memory per rank."""

    @property
    def reserved(self) -> Array:
        """Predicted bytes of torch's max_memory_reserved."""
        return self.allocated + self.fragmentation

    @property
    def device(self) -> Array:
        """Predicted bytes that the device reports in use."""
        return self.reserved + self.context + self.communication


def peak_memory(
    shape: ModelShape,
    c: Candidates,
    dtypes: Dtypes,
    impl: Implementation,
    device: str = "cuda",
    waiting: Array | float = 0.0,
    buffers: Array | float = 0.0,
) -> MemoryTable:
    """Predict the memory of one rank for every candidate.

    With pipeline stages, a rank also holds `waiting` bytes: the activations of micro batches whose backward has not
    begun. `buffers` are the bytes of the buffers that receive activations from other stages; they are held all the
    time.
    """
    is_cuda = device == "cuda"
    dtypes = optimizers.with_states(shape, dtypes, impl)
    state = registry.states(shape, c, dtypes, impl, gloo=not is_cuda)
    state = replace(state, step=state.step + optimizers.step_bytes(shape, c, dtypes, impl, not is_cuda))
    moments, working = _bytes_by_moment(shape, c, dtypes, impl, state)
    moments = _add_activations(moments, waiting, buffers)
    zero = working * 0.0
    host = registry.host_bytes(shape, c, dtypes, impl, gloo=not is_cuda)
    always = state.parameters + state.masters + state.optimizer
    totals = [always + sum(parts) for parts in moments]
    if not is_cuda:
        # The host is the device: offloaded states stay in the rank's own memory. Blocks' inputs are kept apart from it.
        totals = [total + host for total in totals]
    allocated = functools.reduce(np.maximum, totals)
    moment = np.argmax(np.stack(np.broadcast_arrays(*totals)), axis=0)
    terms = {
        "offloaded": zero if is_cuda else host,
        "parameters": state.parameters,
        "masters": state.masters,
        "optimizer": state.optimizer,
    } | {name: np.choose(moment, [parts[i] for parts in moments]) for i, name in enumerate(_CHANGING_TERMS)}
    return MemoryTable(
        terms={name: terms[name] for name in TERMS},
        moment=moment.astype(float),
        allocated=allocated,
        fragmentation=_fragmentation(c, state, working, moment) if is_cuda else zero,
        context=zero + (CONTEXT_GIB * GIB if is_cuda else 0.0),
        communication=np.where(c.ranks * c.stages > 1, COMMUNICATION_GIB * GIB, 0.0) if is_cuda else zero,
        host=host + offloaded_inputs(shape, c, dtypes, impl, is_pinned=is_cuda),
    )


_CHANGING_TERMS = ("gradients", "gathered", "buckets", "activations", "recomputation", "logits", "step")


def _bytes_by_moment(
    shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, state: States
) -> tuple[tuple[tuple[Array, ...], ...], Array]:
    """Bytes of each memory term that changes within a step (`_CHANGING_TERMS`) at each of `MOMENTS`. The second value
    is the working set of one block's backward."""
    block = block_bytes(shape, c, dtypes, impl)
    logits = logits_bytes(shape, c, dtypes, impl)
    zero = logits * 0.0
    caches = impl.kept_caches * c.tokens * (2.0 * shape.kv * dtypes.compute * shape.layers)
    caches = caches + outside_bytes(shape, c)
    # Backward ends at the first block with something to train.
    end = shape.layers - shape.trained_blocks + 1
    last, second = shape.layers, min(end + 1, shape.layers)
    last_but_one = max(last - 1, end)

    def kept(blocks: int) -> Array:
        return block.kept(c, blocks) + caches

    def reducing(number: int) -> Array:
        return np.maximum(np.maximum(block.working(c, number), state.unit_gradients), state.reduced_unit)

    first = block.working(c, last)
    return (
        (state.gradients_early, state.gathered_loss, state.buckets_loss, kept(last), zero, logits, zero),
        (state.gradients_early, state.gathered_backward, state.buckets_first, kept(last), first, zero, zero),
        (
            state.gradients_second,
            state.gathered_middle,
            state.buckets,
            kept(last_but_one),
            reducing(last_but_one),
            zero,
            zero,
        ),
        (state.gradients_next, state.gathered_middle, state.buckets, kept(second), reducing(second), zero, zero),
        (state.gradients_last, state.gathered_last, state.buckets, kept(end), reducing(end), zero, zero),
        (state.gradients_late, zero, state.end, tail_bytes(shape, c), zero, zero, zero),
        (state.gradients_late, zero, state.buckets_step, zero, zero, zero, state.step),
    ), first


def _add_activations(
    moments: tuple[tuple[Array, ...], ...], waiting: Array | float, buffers: Array | float
) -> tuple[tuple[Array, ...], ...]:
    """Add the activations of other micro batches, which wait in a pipeline, to the bytes at each moment of a step."""
    position = _CHANGING_TERMS.index("activations")
    last = len(moments) - 1
    # Nothing waits any more when the optimizer steps.
    added = [buffers + (waiting if moment < last else 0.0) for moment in range(len(moments))]
    return tuple(
        (*parts[:position], parts[position] + extra, *parts[position + 1 :])
        for parts, extra in zip(moments, added, strict=True)
    )


def _fragmentation(c: Candidates, state: States, working: Array, moment: Array) -> Array:
    """Bytes of fragmentation: free memory in the allocator's pools that the tensors of the peak cannot reuse."""
    # The caching allocator keeps one pool per stream, and never assembles a large block from small free ones. Where the
    # peak is the loss, the working set of a block's backward and the communication streams' buffers add to it.
    at_loss = moment == 0
    gathered = np.maximum(state.gathered_backward - state.gathered_loss, 0.0)
    # The buffers of a reduction stay reserved for its stream while the next block computes.
    computing = np.maximum(working, state.unit_gradients)
    left = np.maximum(computing + state.freed_late - np.maximum(computing, state.reduced_unit), 0.0)
    pools = np.where(at_loss, gathered + state.buckets + state.freed_late, _IS_REDUCING[moment] * left)
    pools = pools + registry.number_of_backend(c, lambda backend: backend.frees_late) * gathered
    return np.where(at_loss, working, 0.0) + pools
