"""Record that describes one backend to the predictor; each backend's module creates its own record."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Strategy
from shardtune.tuner.prediction.backends.states import States
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.collectives import Traffic
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network

S = TypeVar("S")
Row = dict[str, float]


class Lighter(NamedTuple):
    """Strategy that keeps fewer bytes of model states on the device than the strategy it replaces."""

    strategy: Strategy
    words: str
    weight: int
    """Distance of a lighter strategy from the strategy that it replaces: offloading counts more than a change of
    strategy."""


def always_overlaps(c: Candidates) -> Array:
    """Overlap flags for a backend whose communication overlaps with computation in every configuration: all 1."""
    return np.ones_like(c.tokens)


def no_accumulation_bytes(_shape: ModelShape, c: Candidates, _d: Dtypes, _impl: Implementation) -> Array:
    """Return 0 for each candidate as the memory traffic of gradient accumulation: for a backend that accumulates
    sharded gradients, for which the traffic is negligible."""
    return c.tokens * 0.0


@dataclass(frozen=True)
class PredictedBackend(Generic[S]):
    """Predictor of one backend, as functions over arrays of candidates. The arrays may contain candidates of other
    backends; results for these are discarded."""

    codes: tuple[int, ...]
    """Numbers in `Candidates.backend` that stand for this backend."""
    row: Callable[[S, int], Row]
    """Function that returns the fields of `Candidates` that a configuration of the backend sets, given the number of
    ranks."""
    states: Callable[[ModelShape, Candidates, Dtypes, Implementation, bool], States]
    """Function that returns the bytes of model states on one rank at several times in a step. Its flag is whether ranks
    run on CPU with gloo."""
    host: Callable[[ModelShape, Candidates, Dtypes, Implementation, bool], Array]
    """Function that returns the bytes of model states that one rank keeps in host memory. Its flag is whether ranks run
    on CPU with gloo."""
    traffic: Callable[[ModelShape, Candidates, Dtypes, Implementation, Network], Traffic]
    """Function that returns the seconds of the backend's communication as if none of it overlapped with computation."""
    launches: Callable[[ModelShape, Candidates, Dtypes, Implementation], Array]
    """Function that returns the host time of the backend's hooks and loops in one micro batch, on average over the
    step, in units of one kernel launch."""
    step_launches: float
    """Kernel launches per parameter of an optimizer step: norm, clipping and update."""
    lighter_strategies: Callable[[S, Cluster], list[Lighter]]
    """Function that returns strategies that keep fewer bytes of model states on the device."""
    table_rows: Callable[[Cluster], list[Strategy]]
    """Function that returns the backend's rows in the table that compares strategies."""
    overlaps: Callable[[Candidates], Array] = always_overlaps
    """Function that returns for each candidate 1 where communication may overlap with computation, else 0."""
    frees_late: bool = False
    """Whether the backend frees gathered parameters through `record_stream`, so that the next gather cannot reuse their
    memory at once."""
    uploads_masters: bool = False
    """Whether offloaded parameters are uploaded to the device in the dtype of the master weights."""
    accumulation_bytes: Callable[[ModelShape, Candidates, Dtypes, Implementation], Array] = no_accumulation_bytes
    """Function that returns the bytes of memory traffic to accumulate one micro batch's gradients, on average over the
    step."""
