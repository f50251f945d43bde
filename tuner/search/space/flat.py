"""Conversion of a configuration to a flat table of knob values and back."""

from functools import lru_cache
from operator import attrgetter

from pydantic import ValidationError

from shardtune.api_schemas.strategies import Strategy, TrialConfig
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.search.space.backends.registry import BACKENDS
from shardtune.tuner.search.space.legal_values import COMMON, Flat

_common_values = attrgetter(*COMMON)


def flatten(config: TrialConfig) -> Flat:
    """Values of all knobs of the configuration by name, `backend` included."""
    table: Flat = {"backend": config.backend}
    table.update(zip(COMMON, _common_values(config), strict=True))
    table.update(_own_knobs(config.strategy))
    return table


def unflatten(table: Flat) -> TrialConfig:
    """Build a configuration from a flat table of knob values; missing knobs keep their defaults.

    Raises:
        ValueError: the backend does not accept a value; names the field, the value and what is expected.
    """
    common, names, values = {}, [], []
    for name, value in table.items():
        if name in COMMON:
            common[name] = value
        elif name != "backend":
            names.append(name)
            values.append(value)
    try:
        strategy = _strategy(str(table["backend"]), tuple(names), *values)
        return TrialConfig.model_validate({**common, "strategy": strategy})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or str(table["backend"])
        raise ValueError(f"{field} ({first['input']!r}): {first['msg']}; change or drop that limit") from None


# Most configurations of a search share their strategy with others.
@lru_cache(maxsize=2048)
def _own_knobs(strategy: Strategy) -> Flat:
    return BACKENDS[strategy.kind].to_knobs(strategy)


# The cache is typed because in Python True == 1.
@lru_cache(maxsize=2048, typed=True)
def _strategy(kind: str, names: tuple[str, ...], *values: KnobValue) -> Strategy:
    backend = BACKENDS[kind]
    strategy: Strategy = backend.config(**backend.to_fields(dict(zip(names, values, strict=True))))
    return strategy
