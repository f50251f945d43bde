"""Record that describes a backend to the predictor, made in the backend's own module."""

from collections.abc import Callable, Mapping
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
    """Strategy that holds less on the device than another."""

    strategy: Strategy
    words: str
    weight: int
    """Distance from the other strategy: offloading weighs more than another strategy."""


def always_overlaps(c: Candidates) -> Array:
    """Overlap flags of a backend whose communication hides behind computation in every configuration: all 1."""
    return np.ones_like(c.tokens)


def no_accumulation_bytes(_shape: ModelShape, c: Candidates, _d: Dtypes, _impl: Implementation) -> Array:
    """Accumulation bytes of a backend that adds up sharded gradients, which is negligible: all 0."""
    return c.tokens * 0.0


@dataclass(frozen=True)
class PredictedBackend(Generic[S]):
    """Functions over many candidates at once; rows of other backends are computed along and discarded."""

    codes: tuple[int, ...]
    """Codes of the backend in `Candidates.backend`."""
    row: Callable[[S, int], Row]
    """Function that returns the fields of `Candidates` that a configuration sets, given the number of ranks."""
    states: Callable[[ModelShape, Candidates, Dtypes, Implementation, bool], States]
    """Function that returns the states of one rank by moment. The flag: over gloo, on CPU ranks."""
    host: Callable[[ModelShape, Candidates, Dtypes, Implementation, bool], Array]
    """Function that returns the bytes of one rank in host memory; the same flag."""
    traffic: Callable[[ModelShape, Candidates, Dtypes, Implementation, Network], Traffic]
    """Function that returns the seconds of communication, if nothing hid it."""
    launches: Callable[[ModelShape, Candidates, Dtypes, Implementation], Array]
    """Function that returns the host cost of the backend's hooks and loops in one micro batch, on average over the
    step, in launches."""
    step_launches: float
    """Launches per parameter of an optimizer step: norm, clipping and update."""
    lighter_strategies: Callable[[S, Cluster], list[Lighter]]
    """Function that returns strategies with less of the states on the device."""
    table_rows: Callable[[Cluster], list[Strategy]]
    """Function that returns the backend's rows in the table of strategies."""
    without_term: Mapping[str, str]
    """Reasons why knobs change no prediction, by knob."""
    overlaps: Callable[[Candidates], Array] = always_overlaps
    """Function that returns 1 where communication may hide behind computation."""
    frees_late: bool = False
    """Whether gathered parameters are freed through `record_stream`, so that the next gather cannot reuse them at
    once."""
    uploads_masters: bool = False
    """Whether offloaded parameters are uploaded in the masters' dtype."""
    accumulation_bytes: Callable[[ModelShape, Candidates, Dtypes, Implementation], Array] = no_accumulation_bytes
    """Function that returns the bytes of memory traffic to add one micro batch's gradients, on average over the
    step."""
