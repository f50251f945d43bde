"""Record that describes one optimizer to the predictor; each optimizer's module creates its own record."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network, Rates

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class PredictedOptimizer(Generic[Settings]):
    """Predictor of one optimizer's temporaries and time, as functions over arrays of candidates; optimizer states are
    predicted elsewhere."""

    step_bytes: Callable[[Settings, ModelShape, Candidates, Dtypes, bool], Array]
    """Function that returns the bytes of an optimizer step's temporaries on one rank. Its flag is whether ranks
    are on the CPU."""
    step_seconds: Callable[[Settings, ModelShape, Candidates, Rates, Network], Array]
    """Function that returns the seconds that an optimizer step takes in addition to its passes over parameters,
    gradients and states: for matrix products, launches and exchanges."""
