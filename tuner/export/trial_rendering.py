"""What a renderer for one consumer gives, and the phrases renderers share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.tuner.export.quoting import literal, remark


@dataclass(frozen=True)
class Rendered:
    """The files of one consumer, and how far they say what was measured."""

    files: dict[str, str]
    """Content by relative name."""
    release: str
    """What they are written for, such as `torchtitan 0.2.2`."""
    lossy: tuple[str, ...]
    """What the consumer cannot express: a name, what was measured, and what happens instead."""
    lossy_config: TrialConfig
    """What the consumer does, as near as our own words come; equal to what was measured where nothing is lost."""


def differences(measured: TrialConfig, done: TrialConfig, consumer: str) -> tuple[str, ...]:
    """The knobs in which what a consumer does differs from what was measured."""
    ours, theirs = _flat(measured), _flat(done)
    return tuple(
        f"{name}: {word(ours[name])} was measured; {consumer} has {word(theirs[name])}"
        for name in ours
        if ours[name] != theirs.get(name)
    )


def comment(lines: tuple[str, ...], prefix: str, quoted: Callable[[str], str] = remark) -> str:
    """The losses as lines of a file's header; `quoted` fits each to where the header stands."""
    if not lines:
        return f"{prefix}Says all that was measured."
    return "\n".join([f"{prefix}What it cannot say:", *(f"{prefix}- {quoted(line)}" for line in lines)])


def keywords(options: dict[str, Any]) -> str:
    """Arguments of a call."""
    return ", ".join(f"{name}={literal(value)}" for name, value in options.items())


def pretty(values: dict[str, Any]) -> str:
    """A dictionary as source code inside a function, a line per entry."""
    lines = [f"        {literal(name)}: {literal(value)}," for name, value in values.items()]
    return "\n".join(["{", *lines, "    }"])


def _flat(config: TrialConfig) -> dict[str, object]:
    return {**config.strategy.model_dump(), **config.model_dump(exclude={"strategy"})}


def word(value: object) -> str:
    """A knob's value as configuration files write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
