"""Record that describes a backend to the search, made in the backend's own module."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Strategy
from shardtune.tuner.search.space.define_by_run import DefineByRun
from shardtune.tuner.search.space.legal_values import Flat, Knob

S = TypeVar("S", bound=Strategy)


def fields_as_knobs(strategy: Strategy) -> Flat:
    """Knobs of a strategy whose every field is a knob of the same name."""
    return {name: getattr(strategy, name) for name in type(strategy).model_fields if name != "kind"}


def knobs_as_fields(own: Flat) -> dict[str, Any]:
    """Fields of a strategy whose every knob is a field of the same name."""
    return dict(own)


def no_configs(_cluster: Cluster) -> list[Any]:
    """Empty list, for a backend that has no such configurations."""
    return []


def one_rank(_drawing: DefineByRun) -> int:
    """Number of ranks that compute one copy of the model where no backend splits it: 1."""
    return 1


@dataclass(frozen=True)
class SearchedBackend(Generic[S]):
    """Description of a backend's part of the space."""

    config: type[S]
    knobs: Mapping[str, Knob]
    """Knobs beyond `legal_values.COMMON`."""
    draw: Callable[[DefineByRun, bool], None]
    """Function that decides each knob, in an order in which conditions look back only. The flag: gradients are
    accumulated."""
    defaults: Callable[[Cluster], list[S]]
    """Configurations as the backend's documentation starts it; the first stands for the backend beside a user's
    baseline."""
    split: Callable[[DefineByRun], int] = one_rank
    """Function that decides how many ranks compute one copy of the model, before any knob that depends on it."""
    aligned: Callable[[Cluster], list[S]] = no_configs
    """Configurations that keep the heavy traffic within each node, on several nodes; they run whatever is predicted."""
    to_knobs: Callable[[S], Flat] = fields_as_knobs
    """Function from a strategy to its knobs."""
    to_fields: Callable[[Flat], dict[str, Any]] = knobs_as_fields
    """Function from knobs to a strategy's fields; missing knobs keep their defaults."""
