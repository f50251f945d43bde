"""Record that describes one backend to the search; each backend's module creates its own record."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardtune.api_schemas.knobs import Knob, knobs_of
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Strategy
from shardtune.api_schemas.strategies.base import StrategySchema
from shardtune.tuner.search.space.define_by_run import DefineByRun
from shardtune.tuner.search.space.legal_values import Flat

S = TypeVar("S", bound=Strategy)


def fields_as_knobs(strategy: Strategy) -> Flat:
    """Return the knob values, by name, of a strategy all of whose fields are knobs of the same name."""
    return {name: getattr(strategy, name) for name in type(strategy).model_fields if name != "kind"}


def knobs_as_fields(own: Flat) -> dict[str, Any]:
    """Return the field values of a strategy all of whose knobs are fields of the same name."""
    return dict(own)


def no_configs(_cluster: Cluster) -> list[Any]:
    """Return no configurations: for a backend that has none that shard within a node and replicate across nodes."""
    return []


def one_rank(_drawing: DefineByRun) -> int:
    """Return 1, the number of ranks that compute one copy of the model, for a backend that never splits a model."""
    return 1


@dataclass(frozen=True)
class SearchedBackend(Generic[S]):
    """Description of one backend for the search: its knobs, how to draw them, and its defaults."""

    config: type[S]
    draw: Callable[[DefineByRun, bool], None]
    """Function that chooses the values of the backend's knobs whose legal values or conditions their declarations
    cannot state. It must choose knobs in an order in which each depends on earlier ones only. Its flag says whether
    gradients are accumulated. All other knobs are drawn afterwards, by their declarations."""
    defaults: Callable[[Cluster], list[S]]
    """Function that returns the configurations documented as the backend's defaults; where the user has a baseline,
    only the first of them runs."""
    split: Callable[[DefineByRun], int] = one_rank
    """Function that chooses how many ranks compute one copy of the model, before any knob that depends on this
    number."""
    aligned: Callable[[Cluster], list[S]] = no_configs
    """Function that returns configurations that keep the heaviest traffic within each node of a cluster; a study on
    several nodes runs them, whatever is predicted."""
    to_knobs: Callable[[S], Flat] = fields_as_knobs
    """Function from a backend's strategy to its knob values by name."""
    to_fields: Callable[[Flat], dict[str, Any]] = knobs_as_fields
    """Function from knob values to the fields of the backend's strategy; missing knobs keep their defaults."""

    @property
    def knobs(self) -> dict[str, Knob]:
        """Knobs of the backend beyond those that all backends have (`legal_values.COMMON`)."""
        # mypy takes the class of a type variable for unhashable.
        config: type[StrategySchema] = self.config
        return knobs_of(config)
