"""Conversion of a configuration to a flat table of knob values and back."""

from pydantic import ValidationError

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.tuner.search.space.backends.registry import BACKENDS
from shardtune.tuner.search.space.legal_values import COMMON, Flat


def flatten(config: TrialConfig) -> Flat:
    """Values of all knobs of the configuration by name, `backend` included."""
    common = {name: getattr(config, name) for name in COMMON}
    return {"backend": config.backend, **common, **BACKENDS[config.backend].to_knobs(config.strategy)}


def unflatten(table: Flat) -> TrialConfig:
    """Build a configuration from a flat table of knob values; missing knobs keep their defaults.

    Raises:
        ValueError: the backend does not accept a value; names the field, the value and what is expected.
    """
    backend = BACKENDS[str(table["backend"])]
    backend_knobs = {name: value for name, value in table.items() if name not in COMMON and name != "backend"}
    try:
        return TrialConfig.model_validate(
            {
                **{name: table[name] for name in COMMON if name in table},
                "strategy": backend.config(**backend.to_fields(backend_knobs)),
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or str(table["backend"])
        raise ValueError(f"{field} ({first['input']!r}): {first['msg']}; change or drop that limit") from None
