"""Rendered export for one training program, and phrases that the renderers share."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardtune.api_schemas.knobs import Consumer, declarations
from shardtune.api_schemas.knobs.condition import value_text
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.tuner.export.quoting import literal, remark


@dataclass(frozen=True)
class Rendered:
    """Exported files for one training program, with the differences between its training and the measured trial."""

    files: dict[str, str]
    """Content of each exported file by relative file name."""
    release: str
    """Name and version of the program for which the files are written, such as `torchtitan 0.3`."""
    lossy: tuple[str, ...]
    """Settings that the program cannot express: name, measured value, and what the program does instead."""
    lossy_config: TrialConfig
    """Configuration that the program runs, as near as Shardtune's own fields can express it; it is the measured
    configuration where the program can express all settings."""


class LossyNote(NamedTuple):
    """Difference between a program's training and the measured trial. Code that leaves some differences out compares
    subjects, never sentences."""

    subject: str
    """Name of the knob, or of another setting, that the sentence is about."""
    text: str
    """Sentence: name of the setting, measured value, and what the program does instead."""


def note_texts(notes: Iterable[LossyNote], without: Collection[str] = ()) -> tuple[str, ...]:
    """Sentences of the notes, except of those about the subjects in `without`."""
    return tuple(note.text for note in notes if note.subject not in without)


def run_by(measured: TrialConfig, consumer: Consumer, **changes: Any) -> TrialConfig:
    """Copy of the measured configuration as another program trains it: knobs that the program cannot express have the
    program's own value. `changes`: the program's strategy, and values that depend on more than one knob."""
    return measured.model_copy(update={**declarations.lost_fields(measured, consumer), **changes})


_PROGRAMS: Mapping[Consumer, str] = {
    "training_arguments": "Trainer",
    "torchtitan": "torchtitan",
    "lightning": "Lightning",
}


def differences(measured: TrialConfig, consumer_config: TrialConfig, consumer: Consumer) -> tuple[LossyNote, ...]:
    """Describe each knob whose value in the other program's configuration differs from the measured value, and why,
    where the program lacks the knob."""
    reasons = {**declarations.reasons(measured, consumer), **declarations.reasons(measured.strategy, consumer)}
    measured_values, consumer_values = _flat(measured), _flat(consumer_config)
    return tuple(
        LossyNote(
            name,
            f"{name}: {value_text(measured_values[name])} was measured; {_PROGRAMS[consumer]} has {value_text(consumer_values[name])}"
            + (f", as it {reasons[name]}" if name in reasons else ""),
        )
        for name in measured_values
        if measured_values[name] != consumer_values.get(name)
    )


def comment(lines: tuple[str, ...], prefix: str, quoted: Callable[[str], str] = remark) -> str:
    """Comment lines for the header of an exported file that list its differences from the measured trial; `quoted`
    escapes each line."""
    if not lines:
        return f"{prefix}Expresses everything that was measured."
    return "\n".join(
        [f"{prefix}Differences from the measured trial:", *(f"{prefix}- {quoted(line)}" for line in lines)]
    )


def keywords(options: dict[str, Any]) -> str:
    """Source text of the keyword arguments of a Python call."""
    return ", ".join(f"{name}={literal(value)}" for name, value in options.items())


def pretty(values: dict[str, Any]) -> str:
    """Source text of a Python dictionary inside a function, one line per entry."""
    lines = [f"        {literal(name)}: {literal(value)}," for name, value in values.items()]
    return "\n".join(["{", *lines, "    }"])


def _flat(config: TrialConfig) -> dict[str, object]:
    return {**config.strategy.model_dump(), **config.model_dump(exclude={"strategy"})}
