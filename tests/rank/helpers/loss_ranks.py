"""Ranks that train each of several tiny trials as it is, and with the full loss, MLPs over all tokens, all inputs on the
device and, where activations have a budget, uncompiled; to be called in forks."""

import contextlib
import functools
import importlib
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import StepRecord
from shardtune.workers.blocks import mlp_slices
from shardtune.workers.rank import mesh
from shardtune.workers.rank.device import CpuDevice
from shardtune.workers.rank.model import chunk_math, chunked_loss, context
from shardtune.workers.rank.model.loss_plan import LossPlan
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies import zero
from shardtune.workers.rank.strategies.base import TrainingSetup
from shardtune.workers.rank.training import step as steps
from shardtune.workers.rank.training import wrap
from shardtune.workers.rank.training.resume_check import ResumeLoop
from shardtune.workers.rank.training.step_runs import run_steps
from shardtune.workers.rank.trial_dir import ProgressFile
from tests.support.long_run import IS_LONG
from tests.support.processes import preloaded_forks

_PLAIN = {"loss": "full", "loss_compile": False, "activation_offload": False, "mlp_slices": 1}
_PARTITION_ALONE = "aot_eager_decomp_partition"
"""Backend of `torch.compile` that divides graphs as inductor does, and runs them without building kernels in C++, which
takes 40 s of a core."""
Trained = tuple[tuple[StepRecord, ...], list[torch.Tensor]]


def _own_means(labels: torch.Tensor) -> torch.Tensor:
    """Each chunk is divided by its own number of labels, as if all chunks had as many."""
    counted = (labels != chunk_math.IGNORED).float()
    return counted * (len(labels) / counted.sum().clamp(min=1))


def _last_product(_total: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The head keeps the gradient of the last chunk alone."""
    return (left @ right).float()


def _first_twice(total: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The gradient of what came before is taken once more with each chunk."""
    return (left @ right).float() if total is None else 2 * total + left @ right


def _left_out(outputs: list[torch.Tensor]) -> torch.Tensor:
    """The first slice adds nothing to the block."""
    return torch.cat([torch.zeros_like(outputs[0]), *outputs[1:]], dim=1)


def _counted_twice(outputs: list[torch.Tensor]) -> torch.Tensor:
    """The gradient of the last slice counts twice."""
    if outputs[-1].requires_grad:
        outputs[-1].register_hook(lambda gradient: 2 * gradient)
    return torch.cat(outputs, dim=1)


def _in_another_order(outputs: list[torch.Tensor]) -> torch.Tensor:
    """The last two slices change places; they are of equal size."""
    return torch.cat([*outputs[:-2], outputs[-1], outputs[-2]], dim=1)


def _without_the_rest(outputs: list[torch.Tensor]) -> torch.Tensor:
    """Tokens beyond equal slices are left out: the longer first slices lose their last token."""
    shortest = min(part.shape[1] for part in outputs)
    cut = [torch.cat([part[:, :shortest], torch.zeros_like(part[:, shortest:])], dim=1) for part in outputs]
    return torch.cat(cut, dim=1)


SLICE_FAULTS: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    "a slice is left out": _left_out,
    "a slice's gradient counts twice": _counted_twice,
    "slices change places": _in_another_order,
    "the tokens that divide into no equal slices are left out": _without_the_rest,
}
"""Faults in how the slices of an MLP are joined (`workers.blocks.mlp_slices.joined`)."""
FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "a chunk divides by its own labels": ("weights_of", _own_means),
    "ignored labels count": ("weights_of", lambda labels: torch.ones_like(labels, dtype=torch.float32)),
    "the head keeps one chunk's gradient": ("with_product", _last_product),
    "the head's gradient counts once per chunk": ("with_product", _first_twice),
}


def _without_label(
    part: torch.Tensor, labels: torch.Tensor, scales: torch.Tensor, grad: torch.Tensor, _first: int, plan: LossPlan
) -> None:
    """The compiled gradient is that of the sum of exponentials alone."""
    values = (plan.finished(part).float() - scales[:, :1] - scales[:, 1:]).exp()
    part.copy_(values * (grad * chunk_math.weights_of(labels)).unsqueeze(1))


def _first_part(logits: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Each rank takes its part of the vocabulary for the first one."""
    return (logits.to_local() if isinstance(logits, DTensor) else logits), 0


COMPILED_FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "the compiled gradient leaves out the label": ("_write_gradient", _without_label),
    "ignored labels count in compiled chunks": (
        "weights_of",
        lambda labels: torch.ones_like(labels, dtype=torch.float32),
    ),
}
"""Faults in compiled chunks of the loss, which train under DDP."""
SHIFTED_WORDS = "a rank takes another part of the vocabulary for its own"
"""Fault in compiled chunks of a loss that is split by vocabulary."""


def _deepspeed() -> Any:
    """DeepSpeed's module of tiled computation; importing it takes time that tests which plant other faults need not spend."""
    return importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")


class _TiledLoss:
    """DeepSpeed's own loss in tiles in place of ours. Its forward adds the head's gradient up already, so that what scales the
    loss after it (here the number of labels) scales the gradient of the hidden states alone (DeepSpeed 0.19.8)."""

    @staticmethod
    def apply(
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        chunk: int,
        plan: LossPlan,
    ) -> torch.Tensor:
        def summed(_head: Any, part: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
            return chunk_math.sum_of(linear(part, weight, bias), own, plan)

        tiles = math.ceil(len(hidden) / chunk)
        inputs = (None, hidden.unsqueeze(0), labels.unsqueeze(0), None)
        total: torch.Tensor = _deepspeed().TiledFusedLogitsLoss.apply(summed, *inputs, tiles, [weight], "sum")
        return total


def _deepspeed_tiles(forward: Any, count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """DeepSpeed's own tiles of an MLP in place of ours. Where `torch.chunk` makes fewer of them than asked for, no tile counts
    as the last one, and ZeRO never reduces the MLP's gradients (DeepSpeed 0.19.8)."""

    def run(hidden: torch.Tensor) -> torch.Tensor:
        # Now, not before: the model gets its parameters after its blocks were prepared.
        parameters = list(forward.__self__.parameters())
        tiled: torch.Tensor = _deepspeed().TiledMLP.apply(
            lambda _mlp, part: forward(part), None, hidden, count, parameters
        )
        return tiled

    return run


TILED_LOSS = "DeepSpeed's loss in tiles, scaled after it"
"""Fault of an upstream program in the loss; it trains under ZeRO only."""
TILED_MLP = "DeepSpeed's MLP in tiles of which some are missing"
"""Fault of an upstream program in the slices of an MLP; it trains under ZeRO and FSDP2 only."""
_PLACES: dict[str, tuple[Any, str, Any]] = {
    **{fault: (chunk_math, name, function) for fault, (name, function) in FAULTS.items()},
    **{fault: (chunk_math, name, function) for fault, (name, function) in COMPILED_FAULTS.items()},
    SHIFTED_WORDS: (chunk_math, "_own_part", _first_part),
    **{fault: (mlp_slices, "joined", function) for fault, function in SLICE_FAULTS.items()},
    TILED_LOSS: (chunked_loss, "_SummedLoss", _TiledLoss),
    TILED_MLP: (mlp_slices, "_in_slices", _deepspeed_tiles),
}
"""Module, name and replacement of each fault."""


@contextlib.contextmanager
def planted(fault: str | None) -> Iterator[None]:
    """Context with a fault of `FAULTS` or `SLICE_FAULTS`, or one of DeepSpeed's; none without a name."""
    if fault is None:
        yield
        return
    module, name, replacement = _PLACES[fault]
    original = getattr(module, name)
    setattr(module, name, replacement)
    try:
        yield
    finally:
        setattr(module, name, original)


@contextlib.contextmanager
def _compiled_by(backend: str | None, task: TrialTask) -> Iterator[None]:
    """Context in which blocks with a budget, and a compiled loss, are compiled by another backend of `torch.compile` than a
    trial's."""
    if backend is None:
        yield
        return
    prepare_blocks, compiler = wrap.prepare_blocks, chunk_math.COMPILER
    if task.config.activation_memory_budget < 1:
        wrap.prepare_blocks = functools.partial(prepare_blocks, backend=backend)
    chunk_math.COMPILER = backend
    try:
        yield
    finally:
        wrap.prepare_blocks, chunk_math.COMPILER = prepare_blocks, compiler


def assert_same(difference: dict[str, float], bound: dict[str, float]) -> None:
    """Assert that a task of `compared` ran, and that each difference is within its bound."""
    assert difference and all(difference[name] <= bound[name] for name in bound), difference


def compared(
    tasks: dict[str, tuple[TrialTask, str | None]], folder: Path, ranks: int = 2
) -> dict[str, dict[str, float]]:
    """Largest differences between a task and its plain form (full loss, whole MLPs, inputs on the device, no budget) by
    task's name: relative in loss and norm, absolute in a weight; empty where the ranks failed. A task comes with the name
    of its fault."""
    given = {name: (task.model_dump_json(), fault) for name, (task, fault) in tasks.items()}
    printed = preloaded_forks.ranks(print_differences, given, folder, logs=folder, count=ranks)
    by_rank = [json.loads(text.splitlines()[-1]) for text in printed]
    return {
        name: {key: max(of_rank[name][key] for of_rank in by_rank) for key in by_rank[0][name]} for name in by_rank[0]
    }


def print_differences(tasks: dict[str, tuple[str, str | None]], folder: Path) -> None:
    """Print the differences of each task as JSON by name, none where it fails."""
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = RankContext(rank, rank, world, world, CpuDevice())
    mesh.join(place, folder)
    differences: dict[str, dict[str, float]] = {}
    full: dict[str, Trained] = {}
    for name, (text, fault) in tasks.items():
        task = TrialTask.model_validate_json(text)
        config = task.config.without_compile() if task.config.activation_memory_budget < 1 else task.config
        plain = task.model_copy(update={"config": config.model_copy(update=_PLAIN)})
        key = plain.model_dump_json()
        try:
            if key not in full:
                full[key] = _trained(plain, place, folder, None)
            differences[name] = _difference(full[key], _trained(task, place, folder, fault))
        except Exception:  # noqa: BLE001 -- on all ranks alike: the others are still trained
            traceback.print_exc()
            differences[name] = {}
    sys.stdout.write("\n" + json.dumps(differences) + "\n")
    sys.stdout.flush()
    # As the fork server's ranks end: gloo has hung in what the interpreter winds down.
    os._exit(0)


def _difference(full: Trained, chunks: Trained) -> dict[str, float]:
    pairs = list(zip(full[0], chunks[0], strict=True))
    weights = [float((a - b).abs().max()) for a, b in zip(full[1], chunks[1], strict=True) if a.numel()]
    return {
        "loss": max(abs(a.loss - b.loss) / abs(a.loss) for a, b in pairs),
        "norm": max(abs((a.grad_norm or 0) - (b.grad_norm or 0)) / (a.grad_norm or 1) for a, b in pairs),
        "weight": max(weights, default=0.0),
        "first_loss": abs(pairs[0][0].loss - pairs[0][1].loss) / abs(pairs[0][0].loss),
    }


def _trained(task: TrialTask, place: RankContext, folder: Path, fault: str | None) -> Trained:
    """Trajectory of a task, and this rank's master weights after it."""
    step = steps.of(task.model, task.workload, context.group_of(task, place), task.config)
    setting = TrainingSetup.of(task, place, step.loss)
    # A process that compiles one block for many tasks would reach Dynamo's limit of eight.
    torch._dynamo.reset()
    with planted(fault), _compiled_by(None if IS_LONG else _PARTITION_ALONE, task):
        trainer: Any = wrap.make_trainer(step.build_model(), setting)
        loop = ResumeLoop(trainer.parameter_checksum, setting, step, ProgressFile(folder, place.rank))
        run_steps(loop.record(task.plan.parity_steps), trainer)
    trainer = getattr(trainer, "inner", trainer)
    is_zero = isinstance(trainer, zero.ZeroTrainer)
    masters = zero._masters(trainer._engine.optimizer) if is_zero else trainer._parameters
    weights = [(part.to_local() if isinstance(part, DTensor) else part).detach().float().clone() for part in masters]
    trainer.close()
    return tuple(loop.outcome.trajectory), weights
