"""Registry of the backends that the predictor knows; it combines their predictions, each candidate's from its own
backend."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from shardtune.tuner.prediction.backends import ddp, fsdp1, fsdp2, zero
from shardtune.tuner.prediction.backends.record import PredictedBackend
from shardtune.tuner.prediction.backends.states import States, with_cast_copies
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation, Mask
from shardtune.tuner.prediction.collectives import Traffic
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network
from shardtune.tuner.prediction.tensors import tensor_count

BACKENDS: dict[str, PredictedBackend[Any]] = {
    "ddp": ddp.BACKEND,
    "zero": zero.BACKEND,
    "fsdp2": fsdp2.BACKEND,
    "fsdp1": fsdp1.BACKEND,
}
T = TypeVar("T", States, Traffic)


def states(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool = False) -> States:
    """Bytes of model states of each candidate, at several times in a step. `gloo`: whether ranks are CPU ranks."""
    # gloo's reduce-scatter works on a clone of its whole input (torch 2.13, ProcessGroupGloo; measured: 4 MiB for 4
    # MiB).
    merged = _merge(States, c, lambda backend: backend.states(shape, c, d.under(impl), impl, gloo))
    return with_cast_copies(merged, shape, c, d) if impl.autocast else merged


def traffic(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, network: Network) -> Traffic:
    """Seconds of communication of each candidate, by pass of the step."""
    return _merge(Traffic, c, lambda backend: backend.traffic(shape, c, d.under(impl), impl, network))


def host_bytes(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool) -> Array:
    """Bytes in host memory per rank, for each candidate."""
    return _select(c, lambda backend: backend.host(shape, c, d.under(impl), impl, gloo))


def micro_batch_launches(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation) -> Array:
    """Host time of the backend's hooks in one micro batch, on average over the step, in units of one kernel launch
    (`Rates.launch_s`).

    On a GPU this host time overlaps with running kernels, as that of launches does; on a CPU rank it adds up. The
    counts are those of `python -m benchmarks.host_costs` on CPU ranks (docs/measurements/predictor.md), which trains a
    model too narrow to need computing time under each strategy. It divides the milliseconds per FSDP unit, parameter
    and micro batch by those of one operator.
    """
    return _select(c, lambda backend: backend.launches(shape, c, d.under(impl), impl))


def accumulation_bytes(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation) -> Array:
    """Bytes of memory traffic to accumulate the gradients of one micro batch, for each candidate."""
    return _select(c, lambda backend: backend.accumulation_bytes(shape, c, d.under(impl), impl))


def step_launches(shape: ModelShape, c: Candidates) -> Array:
    """Host time of the backend's hooks in one optimizer step, in units of one kernel launch, for each candidate."""
    return tensor_count(shape) * number_of_backend(c, lambda backend: backend.step_launches)


def number_of_backend(c: Candidates, value: Callable[[PredictedBackend[Any]], float]) -> Array:
    """Array with one number for each candidate, taken from the candidate's backend, such as launches per parameter."""
    return _select(c, lambda backend: np.full_like(c.tokens, value(backend)))


def overlaps(c: Candidates) -> Array:
    """Array with 1 for each candidate whose communication may overlap with computation, else 0."""
    return _select(c, lambda backend: backend.overlaps(c))


def _present(c: Candidates) -> list[tuple[Mask, PredictedBackend[Any]]]:
    masks = ((_mask(c, backend.codes), backend) for backend in BACKENDS.values())
    return [(mask, backend) for mask, backend in masks if mask.any()]


def _mask(c: Candidates, codes: tuple[int, ...]) -> Mask:
    """Array that is true for each candidate whose backend has one of these codes."""
    mask: Mask = c.backend == codes[0]
    for code in codes[1:]:
        mask = mask | (c.backend == code)
    return mask


def _chosen(choices: list[tuple[Mask, Array]]) -> Array:
    """Array with each candidate's value from the choice whose mask is true for it, 0 where none is."""
    # `np.select` does the same; its checks take longer than the choice among a few hundred candidates.
    values: Any = 0
    for mask, choice in choices:
        values = np.where(mask, choice, values)
    return np.asarray(values)


def _select(c: Candidates, answer: Callable[[PredictedBackend[Any]], Array]) -> Array:
    return _chosen([(mask, answer(backend)) for mask, backend in _present(c)])


def _merge(kind: type[T], c: Candidates, answer: Callable[[PredictedBackend[Any]], T]) -> T:
    parts = [(mask, answer(backend)) for mask, backend in _present(c)]
    if len(parts) == 1:
        return parts[0][1]
    return kind(**{f.name: _chosen([(mask, getattr(part, f.name)) for mask, part in parts]) for f in fields(kind)})
