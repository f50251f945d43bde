"""Trace of the user's own training step: parameters become tensors without values; the batch, masks and positions keep
theirs.

So code that reads the batch runs as it does in a trial; code that reads the value of an activation raises.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from shardtune.api_schemas.training.step_trace import Scaled, StepTrace, StepWork
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.own_code import fused_attention
from shardtune.workers.rank.own_code.block_moments import BlockMoments
from shardtune.workers.rank.own_code.step_recorder import Part, StepCounts, StepRecorder
from shardtune.workers.rank.training.step import Step

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class _Pass:
    """Figures (memory and operations) of one forward and backward pass over a micro batch."""

    peak: int
    outside: int
    block: float
    boundary: float
    selective: float
    working: int
    loss: int
    tail: int
    unused: int
    work: dict[Part, StepCounts]


def trace(step: Step, workload: Workload) -> StepTrace:
    """Trace one forward and backward pass of a training step at two micro batch sizes.

    Raises:
        Exception: any error of the user's code, and torch's errors about tensors without values.
    """
    sizes = _micro_batches(workload.global_batch)
    model = step.build_model()
    parameters = _parameters(model)
    passes = [_run(step, model, workload, size) for size in sizes]
    return StepTrace(
        sequence_length=workload.sequence_length,
        compute_dtype=workload.precision.compute_dtype,
        autocast=workload.precision.autocast,
        samples=tuple(sizes),
        **{
            name: _scaled(sizes, [getattr(one_pass, name) for one_pass in passes])
            for name in ("peak", "outside", "block", "boundary", "selective", "working", "loss", "tail")
        },
        blocks_forward=_step_work(sizes, [one_pass.work["blocks"] for one_pass in passes]),
        outside_forward=_step_work(sizes, [one_pass.work["outside"] for one_pass in passes]),
        backward=_step_work(sizes, [one_pass.work["backward"] for one_pass in passes]),
        unused_parameters=max(one_pass.unused for one_pass in passes),
        **parameters,
    )


def _micro_batches(global_batch: int) -> list[int]:
    """Two micro batch sizes to trace, or a single one if the global batch is a single sample."""
    # Not 1 where it can be helped: code and kernels treat single samples apart.
    return [2, 4] if global_batch >= 4 else [1, 2] if global_batch >= 2 else [1]


def _run(step: Step, model: nn.Module, workload: Workload, samples: int) -> _Pass:
    _take_values(model, workload)
    recorder = StepRecorder([*model.parameters(), *model.buffers()])
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: recorder.mark_gradient(p.grad))  # type: ignore[no-untyped-call]
    # A model without repeated blocks is one block itself.
    blocks = [block for _, block in repeated_blocks(model)] or [model]
    with contextlib.ExitStack() as hooks:
        for part in {id(part): part for part in (model, *blocks)}.values():
            hooks.callback(part.register_forward_pre_hook(_cast_inputs(workload), with_kwargs=True).remove)
        moments = BlockMoments(recorder, blocks, hooks)
        batch = step.make_batch(0, range(samples), _CPU)
        recorder.add(leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))
        with recorder, fused_attention.as_on_gpus(), _autocast(workload):
            loss = step.loss(model, batch)
        with recorder, fused_attention.as_on_gpus():
            moments.backward_begins()
            loss.backward()  # type: ignore[no-untyped-call]
            tail = moments.backward_ended()
    return _Pass(
        peak=recorder.peak,
        outside=moments.outside,
        block=moments.kept / len(blocks),
        boundary=moments.boundary / len(blocks),
        selective=recorder.selective / len(blocks),
        working=moments.working,
        loss=max(moments.loss - moments.outside - moments.kept, 0),
        tail=tail,
        unused=sum(1 for parameter in model.parameters() if parameter.requires_grad and parameter.grad is None),
        work=recorder.work,
    )


def _take_values(model: nn.Module, workload: Workload) -> None:
    """Replace a model's parameters by new ones that have no values and claim to be on the CPU."""
    dtype = models.DTYPES[workload.precision.weights_dtype]
    # Tensors of the batch are real, and mix with those without values.
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def make(_name: str, old: nn.Parameter) -> nn.Parameter:
        with fake:
            value = torch.empty(old.shape, dtype=dtype if old.is_floating_point() else old.dtype, device=_CPU)
        return nn.Parameter(value, requires_grad=old.requires_grad)

    models.replace_parameters(model, make)


def _cast_inputs(workload: Workload) -> Any:
    """Forward hook that casts floating-point inputs to a lower precision, as FSDP does."""
    precision = workload.precision
    dtype = models.DTYPES[precision.weights_dtype]

    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    if precision.autocast or dtype == torch.float32:
        return lambda _module, args, kwargs: None
    return lambda _module, args, kwargs: (tree_map(cast, args), tree_map(cast, kwargs))


@contextlib.contextmanager
def _autocast(workload: Workload) -> Iterator[None]:
    precision = workload.precision
    if not precision.autocast:
        yield
        return
    with torch.autocast("cpu", dtype=models.DTYPES[precision.compute_dtype]):
        yield


def _scaled(samples: list[int], amounts: list[float]) -> Scaled:
    """Linear function of the number of samples (a fixed part, and a part per sample) that fits amounts measured at the
    given numbers of samples. Neither part is negative."""
    if len(samples) == 1:
        return Scaled(per_sample=amounts[0] / samples[0])
    (few, many), (small, large) = samples, amounts
    slope = max(0.0, (large - small) / (many - few))
    fixed = small - slope * few
    # Amounts that grow faster than the samples have no fixed part; the larger micro batch decides.
    return Scaled(fixed=fixed, per_sample=slope) if fixed >= 0 else Scaled(per_sample=max(large, 0.0) / many)


def _step_work(samples: list[int], parts: list[StepCounts]) -> StepWork:
    largest, count = parts[-1], samples[-1]
    return StepWork(
        matmul_flops=largest.matmul_flops / count,
        attention_flops=largest.attention_flops / count,
        traffic=_scaled(samples, [work.traffic for work in parts]),
        kernels=largest.kernels,
    )


def _parameters(model: nn.Module) -> dict[str, Any]:
    """Sizes of a model's parameters, separately for its repeated blocks and for the rest."""
    blocks = [block for _, block in repeated_blocks(model)] or [model]
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    outside = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    names = list(model.named_parameters(remove_duplicate=False))
    return {
        "block_tensors": tuple(parameter.numel() for parameter in blocks[0].parameters())[:4096],
        "outside_tensors": tuple(parameter.numel() for parameter in outside)[:4096],
        "trained_outside": sum(parameter.numel() for parameter in outside if parameter.requires_grad),
        "tied": len(names) > len(list(model.parameters())),
    }
