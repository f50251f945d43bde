"""What the predictor must know of a backend: one record, made in the backend's own module."""

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
    """A strategy that holds less on the device than another."""

    strategy: Strategy
    words: str
    weight: int
    """How far away: offloading weighs more than another strategy."""


def always(c: Candidates) -> Array:
    """Communication hides behind computation whatever the configuration."""
    return np.ones_like(c.tokens)


def nothing_to_add(_shape: ModelShape, c: Candidates, _d: Dtypes, _impl: Implementation) -> Array:
    """Gradients are added up sharded, which is little."""
    return c.tokens * 0.0


@dataclass(frozen=True)
class PredictedBackend(Generic[S]):
    """Functions over many candidates at once; rows of other backends are computed along and thrown away."""

    codes: tuple[int, ...]
    """Of it in `Candidates.backend`."""
    row: Callable[[S, int], Row]
    """The fields of `Candidates` that a configuration sets, on so many ranks."""
    states: Callable[[ModelShape, Candidates, Dtypes, Implementation, bool], States]
    """What one rank keeps, moment by moment. The flag: over gloo, on CPU ranks."""
    host: Callable[[ModelShape, Candidates, Dtypes, Implementation, bool], Array]
    """Bytes of one rank in host memory; the same flag."""
    traffic: Callable[[ModelShape, Candidates, Dtypes, Implementation, Network], Traffic]
    """Seconds of communication, if nothing hid it."""
    launches: Callable[[ModelShape, Candidates, Dtypes, Implementation], Array]
    """What the backend's own hooks and loops cost the host in one micro batch, on average over the step."""
    step_launches: float
    """Likewise per parameter, of an optimizer step: norm, clipping and update."""
    lighter: Callable[[S, Cluster], list[Lighter]]
    """What holds less of the states on the device."""
    shown: Callable[[Cluster], list[Strategy]]
    """Its rows in the table of strategies."""
    without_term: Mapping[str, str]
    """Knobs that change no prediction, and why."""
    overlaps: Callable[[Candidates], Array] = always
    """1 where communication may hide behind computation."""
    frees_late: bool = False
    """Gathered parameters are freed through `record_stream`: the next gather cannot reuse them at once."""
    uploads_masters: bool = False
    """Offloaded parameters come up in the masters' dtype."""
    adds_up: Callable[[ModelShape, Candidates, Dtypes, Implementation], Array] = nothing_to_add
    """Bytes of memory traffic to add one micro batch's gradients to those before it, on average over the step."""
