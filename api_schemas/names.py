"""Patterns for names received from outside that end up in generated files, folder names or terminal output. Exports
also quote them (`tuner.export.quoting`), so that even a field without a pattern cannot inject code."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, JsonValue

_MODEL_CHARACTERS = r"A-Za-z0-9._/~@:+=(), -"
LONGEST_NAME = 200

ModelName = Annotated[
    str, Field(min_length=1, max_length=LONGEST_NAME, pattern=rf"^[A-Za-z0-9._/~][{_MODEL_CHARACTERS}]*$")
]
"""Display name of a model, such as `meta-llama/Llama-2-7b`; without quotation marks and line breaks."""

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
"""Name that the owner of a worker gave to model code of the user's own. It is never a path or a command."""

RowId = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""Id of a run, which workers also use as a folder name."""

StudyId = Annotated[str, Field(max_length=32, pattern=r"^([a-z0-9][a-z0-9-]*\.)?[a-z0-9][a-z0-9-]*$")]
"""Id of a study. Outside the default project, an id chosen by the user starts with the project's id:
`team-a.nightly`."""

ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
"""Single-line text for people; without control characters, which could move a terminal's cursor or start a new line in
a log."""


_CONTROLS = re.compile(r"[\x01-\x08\x0b-\x1f\x7f-\x9f]")


def _without_controls(value: object) -> object:
    """Replace control characters in a text. The character NUL is kept, so that validation rejects the text, because no
    database can store it."""
    return _CONTROLS.sub("\ufffd", value) if isinstance(value, str) else value


ProgramOutput = Annotated[str, BeforeValidator(_without_controls)]
"""Output of a program, with any number of lines; control characters are replaced, since a terminal would execute
them."""


def printable(value: JsonValue) -> JsonValue:
    """Return a JSON value with the control characters in its texts replaced, so that none can move a terminal's cursor
    or start a new line."""
    match value:
        case str():
            return " ".join(_CONTROLS.sub("\ufffd", value).split())
        case list():
            return [printable(item) for item in value]
        case dict():
            return {str(printable(name)): printable(item) for name, item in value.items()}
        case _:
            return value


PrintableText = Annotated[str, BeforeValidator(printable)]
"""Text for people that a worker sent. It is one line, and control characters in it are replaced."""


def model_name_of(text: str) -> str:
    """Return a valid model name made from another text, such as the path in a config.json."""
    kept = re.sub(rf"[^{_MODEL_CHARACTERS}]+", "-", text).strip(" -+=(),:@")
    return kept[:LONGEST_NAME] or "model"
