"""Patterns of words from outside that go further than a table: into files that people run, into folders, onto a
terminal.

The exports quote all of them besides (`tuner.export.quoting`), so that a field that lacks its pattern is still no code.
"""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, JsonValue

_MODEL_CHARACTERS = r"A-Za-z0-9._/~@:+=(), -"
LONGEST_NAME = 200

ModelName = Annotated[
    str, Field(min_length=1, max_length=LONGEST_NAME, pattern=rf"^[A-Za-z0-9._/~][{_MODEL_CHARACTERS}]*$")
]
"""Name that people give a model, such as `meta-llama/Llama-2-7b`; without quotation marks and line ends."""

DeviceName = Annotated[str, Field(max_length=LONGEST_NAME, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/+:@(), -]*$")]
"""Name of a device as its driver prints it, such as `NVIDIA H100 80GB HBM3`."""

PrecisionName = Annotated[str, Field(max_length=50, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]

ModulePath = Annotated[
    str, Field(max_length=500, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*$")
]
"""Path of a module within a model, such as `model.layers.0`."""

ClassName = Annotated[
    str, Field(max_length=LONGEST_NAME, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")
]
"""Name of a Python class, such as `LlamaDecoderLayer`."""

OwnName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""Name that a worker's owner gave to code of their own; never a path or a command."""

RowId = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""Id of a run; a worker names folders after it."""

StudyId = Annotated[str, Field(max_length=32, pattern=r"^([a-z0-9][a-z0-9-]*\.)?[a-z0-9][a-z0-9-]*$")]
"""Id of a study. In a project other than the default one, an id chosen by the user begins with the project's:
`team-a.nightly`."""

ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
"""Text for people on one line: no control character can move a terminal's cursor or begin another line of a log."""


_CONTROLS = re.compile(r"[\x01-\x08\x0b-\x1f\x7f-\x9f]")


def _without_controls(value: object) -> object:
    """Replace control characters. NUL stays, for the border to reject: no database stores it."""
    return _CONTROLS.sub("\ufffd", value) if isinstance(value, str) else value


ProgramOutput = Annotated[str, BeforeValidator(_without_controls)]
"""Output of a program, on any number of lines; control characters, which a terminal would obey, are replaced."""


def printable(value: JsonValue) -> JsonValue:
    """Return JSON without control characters in its texts, so that none moves a terminal's cursor or begins another
    line."""
    match value:
        case str():
            return " ".join(_CONTROLS.sub("\ufffd", value).split())
        case list():
            return [printable(item) for item in value]
        case dict():
            return {str(printable(name)): printable(item) for name, item in value.items()}
        case _:
            return value


def model_name_of(text: str) -> str:
    """Derive a model's name from a text that was not meant as one, such as the path in a config.json."""
    kept = re.sub(rf"[^{_MODEL_CHARACTERS}]+", "-", text).strip(" -+=(),:@")
    return kept[:LONGEST_NAME] or "model"
