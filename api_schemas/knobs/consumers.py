"""Statements of a knob in the programs that a configuration is exported to (consumers): its name, or why it is lost."""

from dataclasses import dataclass
from typing import Literal

from shardtune.api_schemas.training.search_space import KnobValue

Consumer = Literal["script", "deepspeed", "accelerate", "training_arguments", "torchtitan", "lightning"]
"""Program that reads an exported file. `script` is the exported `train_snippet.py`, whose keyword arguments and calls are
those of the trial's own trainer. `deepspeed` is `ds_config.json`, which all programs take for ZeRO."""


@dataclass(frozen=True)
class Key:
    """Field in a consumer's file (program of an export) that takes the knob's value unchanged."""

    name: str


@dataclass(frozen=True)
class Call:
    """Method of the sharded model that takes the knob's value, called unless the value is the default. The trial's
    trainer and the adapter call the methods listed for the consumer `script`."""

    method: str


@dataclass(frozen=True)
class Written:
    """Statement that code must write the knob for an export: in another shape, as several fields, or as a note to the
    user."""

    text: str
    """Place of the knob in the exported file, as Markdown for the reference page."""


@dataclass(frozen=True)
class Lost:
    """Statement that the consumer (program of an export) cannot express the knob and trains with another value."""

    reason: str
    """Reason why the consumer cannot express the knob: a clause without a subject, such as "has no setting"."""
    runs: KnobValue | None = None
    """Value of the knob with which the consumer trains; None: the default of the knob's field."""


@dataclass(frozen=True)
class Unexportable:
    """Rejection of an export: the consumer would train something else with any value but the default."""

    reason: str
    """Reason for the rejection, as text for the reference page."""


Statement = Key | Call | Written | Lost | Unexportable
