"""Statements of a knob in the programs that a configuration is exported to (consumers): its name, or why it is lost."""

from dataclasses import dataclass
from typing import Literal

from shardtune.api_schemas.training.search_space import KnobValue

Consumer = Literal["script", "deepspeed", "accelerate", "training_arguments", "torchtitan", "lightning"]
"""Program that reads an exported file. `script` stands for the exported `train_snippet.py`, which passes the same
keyword arguments and makes the same calls as the trainer of the trials. `deepspeed` stands for `ds_config.json`, which
all programs read for ZeRO."""


@dataclass(frozen=True)
class Key:
    """Statement that a field of the exported file takes the value of the knob unchanged."""

    name: str


@dataclass(frozen=True)
class Call:
    """Statement that a method of the sharded model takes the value of the knob. Exports call it unless the value is the
    default. The trainer of the trials and the adapter for users' scripts call the methods that are stated for
    `script`."""

    method: str


@dataclass(frozen=True)
class Written:
    """Statement that an export needs code to write the knob: in another form, as several fields, or as a note to the
    user."""

    text: str
    """Place of the knob in the exported file, for the reference page (Markdown)."""


@dataclass(frozen=True)
class Lost:
    """Statement that the consumer (the program that reads an export) cannot express the knob, and trains with another
    value of it."""

    reason: str
    """Reason why the knob cannot be expressed in the export, as a clause without a subject, such as "has no
    setting"."""
    runs: KnobValue | None = None
    """Value of the knob with which the consumer (the program that reads an export) trains. If None, it is the default
    of the knob's field."""


@dataclass(frozen=True)
class Unexportable:
    """Statement that an export is rejected if the knob differs from its default, because the consumer (the program that
    reads the export) would train something else."""

    reason: str
    """Reason why the export is rejected, as text for the reference page."""


Statement = Key | Call | Written | Lost | Unexportable
