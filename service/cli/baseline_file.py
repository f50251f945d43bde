"""Read the file that a study names as its baseline: JSON or YAML, with the files it names in turn.

What its keys mean stands in tuner.baseline.
"""

import json
from pathlib import Path

import yaml
from pydantic import JsonValue

from shardtune.service.cli.errors import InputError
from shardtune.service.cli.read import json_of, text_of

SUFFIXES = (".json", ".yaml", ".yml")


def read(named: str, folder: Path) -> dict[str, JsonValue]:
    """The object in the file, given relative to the study's folder; paths in it are relative to the file itself.

    Raises:
        InputError: it, or a file it names, cannot be read.
    """
    path = folder / named
    values = read_object(path)
    for key in ("deepspeed", "fsdp_config"):
        values[key] = _inlined(values.get(key), path.parent)
    section = values.get("deepspeed_config")
    if isinstance(section, dict):
        key = "deepspeed_config_file"
        values["deepspeed_config"] = {**section, key: _inlined(section.get(key), path.parent)}
    return {key: value for key, value in values.items() if value is not None}


def read_object(path: Path) -> dict[str, JsonValue]:
    """The JSON or YAML object in a file.

    Raises:
        InputError: it cannot be read, does not parse (with line and column), or is no object.
    """
    text = text_of(path, "baseline file", "give the path of a JSON or YAML file")
    try:
        # YAML's dates and the like become text: no file here means them.
        value = (
            json_of(path, text) if path.suffix == ".json" else json.loads(json.dumps(yaml.safe_load(text), default=str))
        )
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{path}{where}: {error.problem}; correct the YAML there") from None
    except (yaml.YAMLError, RecursionError, TypeError) as error:
        raise InputError(f"file ({path}) cannot be read as {path.suffix[1:]}: {error}; correct it") from None
    if not isinstance(value, dict):
        raise InputError(f"file ({path}) holds a {type(value).__name__}; it must hold an object")
    return value


def _inlined(value: JsonValue, folder: Path) -> JsonValue:
    return read_object(folder / value) if isinstance(value, str) and value.endswith(SUFFIXES) else value
