"""Conversion of a configuration to a flat table of knob values and back."""

from collections.abc import Sequence
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


def differing_knobs(configs: Sequence[TrialConfig]) -> dict[str, tuple[KnobValue | None, ...]]:
    """Return the knobs in which configurations differ, with the value of each configuration; None if its backend has no
    such knob.

    A knob that only some of the backends have differs if two of them set it differently, or if it has another value
    than its default, such as offload. A default of one backend says nothing beyond the backend's name.
    """
    tables = [flatten(config) for config in configs]
    defaults = [_defaults(config.strategy) for config in configs]
    differing = {}
    for name in dict.fromkeys(name for table in tables for name in table):
        # In Python True == 1.
        values = {repr(table[name]) for table in tables if name in table}
        pairs = zip(tables, defaults, strict=True)
        is_set = any(name in table and repr(table[name]) != repr(default.get(name)) for table, default in pairs)
        if len(values) > 1 or (is_set and any(name not in table for table in tables)):
            differing[name] = tuple(table.get(name) for table in tables)
    return differing


def _defaults(strategy: Strategy) -> Flat:
    """Defaults of the knobs that only this strategy's backend has, without the knobs that have no default."""
    fields = type(strategy).model_fields
    required = {name for name, field in fields.items() if field.is_required()}
    # Unchecked: a value that the strategy's own validators require may not suit the defaults of the others.
    plain = type(strategy).model_construct(**{name: getattr(strategy, name) for name in required})
    return {name: value for name, value in _own_knobs(plain).items() if name not in required}


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
