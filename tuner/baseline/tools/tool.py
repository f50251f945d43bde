"""Record that describes the file of one fine-tuning tool to the baseline's reader."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

Fields = dict[str, JsonValue]


@dataclass
class TrainerFields:
    """Fields of TrainingArguments that a tool's file means, while its words are translated."""

    values: Fields
    names: dict[str, str] = field(default_factory=dict)
    """User's key by the field that it became."""
    after: dict[str, Any] = field(default_factory=dict)
    """Settings of the strategy or the trial that TrainingArguments has no field for, by name."""
    notes: list[str] = field(default_factory=list)

    def rename(self, key: str, name: str) -> None:
        """Give a value of the tool's file the Trainer's name; nothing where the file does not have it."""
        if key in self.values:
            self.values[name] = self.values.pop(key)
            self.names[name] = key


@dataclass(frozen=True)
class StatedAdapter:
    """Part of the weights that a tool's file trains, in the words of a workload's `adapter`."""

    key: str
    """Key of the file that chooses it, also where the file leaves it to the default."""
    settings: dict[str, JsonValue] | None
    """Settings of the adapter; None: all weights are trained."""
    is_known: bool = True
    """Whether the settings say it in full: patterns of names do not."""


@dataclass(frozen=True)
class Tool:
    """File format of one fine-tuning tool."""

    title: str
    marks: frozenset[str]
    """Keys of which any one distinguishes the tool's file from all others: neither TrainingArguments nor TRL has them."""
    keys_file: str
    length: str
    """Key of the longest sample in tokens."""
    default_length: int | None
    """Longest sample in tokens where the file has no key for it; None: the model's own limit."""
    loads_low: bool
    """Whether the tool loads and updates weights in bfloat16; one that does not converts trained ones to float32."""
    dtype_key: str | None
    """Key of the dtype in which the tool loads weights; None where its switch for bf16 decides the dtype."""
    packing: tuple[str, ...]
    """Switches that put several samples into one row."""
    packs_apart: str
    """Switch among them that packs rows whose samples do not see each other."""
    quantised: tuple[str, ...]
    """Keys that train on quantised base weights."""
    four_bit: tuple[str, ...]
    """Keys among them that may stand beside an adapter whose 4-bit weights `adapter` has read."""
    parallel: tuple[str, ...]
    """Keys of numbers of ranks that divide something other than data."""
    renamed: Mapping[str, str]
    """Trainer's field by the tool's key, where only the name differs."""
    translate: Callable[[TrainerFields, int], None]
    """Function that translates the tool's words for sharding, checkpointing and defaults, for a number of ranks."""
    adapter: Callable[[Fields], StatedAdapter]
