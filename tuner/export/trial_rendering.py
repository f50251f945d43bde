"""Result of a renderer for one consumer, and phrases that renderers share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.tuner.export.quoting import literal, remark


@dataclass(frozen=True)
class Rendered:
    """Files of one consumer, and the differences from the measured trial."""

    files: dict[str, str]
    """Content by relative name."""
    release: str
    """Release that the files are written for, such as `torchtitan 0.2.2`."""
    lossy: tuple[str, ...]
    """Settings that the consumer cannot express: a name, what was measured, and what happens instead."""
    lossy_config: TrialConfig
    """Configuration that the consumer runs, as near as our own fields express it; the measured one where nothing is
    lost."""


def differences(measured: TrialConfig, consumer_config: TrialConfig, consumer: str) -> tuple[str, ...]:
    """Knobs in which the consumer's configuration differs from the measured one."""
    measured_values, consumer_values = _flat(measured), _flat(consumer_config)
    return tuple(
        f"{name}: {word(measured_values[name])} was measured; {consumer} has {word(consumer_values[name])}"
        for name in measured_values
        if measured_values[name] != consumer_values.get(name)
    )


def comment(lines: tuple[str, ...], prefix: str, quoted: Callable[[str], str] = remark) -> str:
    """Losses as lines of a file's header; `quoted` fits each to the header's place."""
    if not lines:
        return f"{prefix}Expresses everything that was measured."
    return "\n".join(
        [f"{prefix}Differences from the measured trial:", *(f"{prefix}- {quoted(line)}" for line in lines)]
    )


def keywords(options: dict[str, Any]) -> str:
    """Keyword arguments of a call."""
    return ", ".join(f"{name}={literal(value)}" for name, value in options.items())


def pretty(values: dict[str, Any]) -> str:
    """Dictionary as source code inside a function, a line per entry."""
    lines = [f"        {literal(name)}: {literal(value)}," for name, value in values.items()]
    return "\n".join(["{", *lines, "    }"])


def _flat(config: TrialConfig) -> dict[str, object]:
    return {**config.strategy.model_dump(), **config.model_dump(exclude={"strategy"})}


def word(value: object) -> str:
    """Value of a knob as configuration files write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
