"""Record that describes the file of one fine-tuning tool to the baseline's reader."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

Fields = dict[str, JsonValue]


@dataclass
class TrainerFields:
    """Fields of TrainingArguments into which a fine-tuning tool's file is translated; they are filled step by step."""

    values: Fields
    names: dict[str, str] = field(default_factory=dict)
    """Key that the user wrote in the tool's file, by the name of the Trainer's field that it became."""
    after: dict[str, Any] = field(default_factory=dict)
    """Settings of the strategy or the trial for which TrainingArguments has no field, by name; applied after the
    translated fields are read."""
    notes: list[str] = field(default_factory=list)

    def rename(self, key: str, name: str) -> None:
        """Move the value of a tool's key to the Trainer's field `name`; if the file lacks the key, nothing changes."""
        if key in self.values:
            self.values[name] = self.values.pop(key)
            self.names[name] = key


@dataclass(frozen=True)
class StatedAdapter:
    """Adapter that a fine-tuning tool's file trains, in the settings of a workload's `adapter`."""

    key: str
    """Key of the file that chooses the adapter, such as `adapter`; it is given even if the file lacks the key and the
    tool's default applies."""
    settings: dict[str, JsonValue] | None
    """Settings of the adapter; None where all weights are trained."""
    is_known: bool = True
    """Whether the settings describe the adapter completely; False if the file selects layers by patterns of names."""


@dataclass(frozen=True)
class Tool:
    """Description of the configuration file of one fine-tuning tool, such as axolotl."""

    title: str
    marks: frozenset[str]
    """Keys by which the tool's file is recognised: one is enough, as neither TrainingArguments nor TRL has any of them."""
    keys_file: str
    length: str
    """Key that gives the length of the longest sample in tokens."""
    default_length: int | None
    """Length in tokens of the longest sample if the file does not state it. If None, the model's own limit applies."""
    loads_low: bool
    """Whether the tool loads and updates weights in bfloat16; if False, it converts trained weights to float32."""
    dtype_key: str | None
    """Key that gives the dtype in which the tool loads weights; None where its switch for bf16 decides the dtype."""
    packing: tuple[str, ...]
    """Switches that put several samples into one row."""
    packs_apart: str
    """Switch, one of `packing`, that packs samples without letting the attention of one sample see the other samples of
    its row."""
    quantised: tuple[str, ...]
    """Keys of the tool that quantise the base weights."""
    four_bit: tuple[str, ...]
    """Keys among `quantised` that are allowed with a LoRA adapter, because `adapter` reads their 4-bit weights as part
    of it."""
    parallel: tuple[str, ...]
    """Keys that give numbers of ranks for kinds of parallelism other than data parallelism, such as tensor
    parallelism."""
    renamed: Mapping[str, str]
    """Names of the Trainer's fields, by the tool's key, for keys that have the same meaning and values under another
    name."""
    translate: Callable[[TrainerFields, int], None]
    """Function that translates the tool's settings of sharding and checkpointing, and its defaults, to the Trainer's.
    It is called with the Trainer's fields, which it changes, and the number of ranks."""
    adapter: Callable[[Fields], StatedAdapter]
    float8: Callable[[Fields], str] | None = None
    """Function that returns the name of the scaling with which the tool multiplies in float8, from a file that asks for it.
    None for a tool without float8."""
