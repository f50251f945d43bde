"""What the search must know of a backend: one record, made in the backend's own module."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Strategy
from shardtune.tuner.search.space.define_by_run import DefineByRun
from shardtune.tuner.search.space.legal_values import Flat, Knob

S = TypeVar("S", bound=Strategy)


def fields_of(strategy: Strategy) -> Flat:
    """Each field is a knob of its name."""
    return {name: getattr(strategy, name) for name in type(strategy).model_fields if name != "kind"}


def as_fields(own: Flat) -> dict[str, Any]:
    """Each knob is a field of its name."""
    return dict(own)


def nothing(_cluster: Cluster) -> list[Any]:
    """It has nothing of the kind."""
    return []


def one_rank(_drawing: DefineByRun) -> int:
    """Each rank computes whole models."""
    return 1


@dataclass(frozen=True)
class SearchedBackend(Generic[S]):
    """Its part of the space."""

    config: type[S]
    knobs: Mapping[str, Knob]
    """Those beyond `knobs.COMMON`."""
    draw: Callable[[DefineByRun, bool], None]
    """Decides each of them, in an order in which conditions look back only. The flag: gradients are accumulated."""
    defaults: Callable[[Cluster], list[S]]
    """As the backend's documentation starts it; the first stands for the backend beside a user's baseline."""
    split: Callable[[DefineByRun], int] = one_rank
    """Decides how many ranks compute one copy of the model, before anything that depends on how many take samples."""
    aligned: Callable[[Cluster], list[S]] = nothing
    """Over several nodes: what keeps the heavy traffic within each of them, and runs whatever is predicted."""
    to_knobs: Callable[[S], Flat] = fields_of
    to_fields: Callable[[Flat], dict[str, Any]] = as_fields
    """The other way round; knobs that are missing keep their defaults."""
