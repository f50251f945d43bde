"""Read a study's baseline file (JSON or YAML) and the files that it refers to.

`tuner.baseline` interprets the keys.
"""

import json
import math
from pathlib import Path
from typing import Any

import yaml
from pydantic import JsonValue

from shardtune.service.cli.errors import InputError
from shardtune.service.cli.read import parse_json, read_text

_MOST_ENTRIES = 100_000
_MOST_BYTES = 1_000_000
SUFFIXES = (".json", ".yaml", ".yml")


def read(name: str, folder: Path) -> dict[str, JsonValue]:
    """Read a baseline file, whose path is relative to the study's folder. Paths within the file are relative to the
    file itself.

    Raises:
        InputError: the file, or a file it refers to, cannot be read.
    """
    path = folder / name
    values = read_object(path)
    for key in ("deepspeed", "fsdp_config", "fsdp"):
        values[key] = _read_if_file(values.get(key), path.parent)
    section = values.get("deepspeed_config")
    if isinstance(section, dict):
        key = "deepspeed_config_file"
        values["deepspeed_config"] = {**section, key: _read_if_file(section.get(key), path.parent)}
    return {key: value for key, value in values.items() if value is not None}


def read_object(path: Path) -> dict[str, JsonValue]:
    """Read the JSON or YAML object in a file.

    Raises:
        InputError: the file cannot be read, does not parse (with line and column), or holds no object.
    """
    text = read_text(path, "baseline file", "give the path of a JSON or YAML file", 4 * _MOST_BYTES)
    if len(text) > _MOST_BYTES:
        # PyYAML needs seconds for each megabyte.
        raise InputError(f"file ({path}) has {len(text):,} characters; a baseline file may have {_MOST_BYTES:,}")
    try:
        # YAML turns `2024-01-01` into a date, which JSON has no type for; no baseline key takes a date, so text is right.
        value = (
            parse_json(path, text)
            if path.suffix == ".json"
            else json.loads(json.dumps(_within_limits(_parse_yaml(text)), default=str))
        )
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        position = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{path}{position}: {error.problem}; correct the YAML there") from None
    # RecursionError: a few hundred nested brackets exhaust the parser's stack. TypeError: a YAML key that is a mapping.
    # ValueError: a date such as 2026-13-01, or a number of thousands of digits.
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as error:
        raise InputError(f"file ({path}) cannot be read as {path.suffix[1:]}: {error}; correct it") from None
    if not isinstance(value, dict):
        raise InputError(f"file ({path}) holds a {type(value).__name__}; it must hold an object")
    require_finite(value, f"file ({path})")
    return value


def require_finite(value: JsonValue, where: str, name: str = "") -> None:
    """Reject NaN and infinity in a baseline. JSON and YAML files may contain them, infinity also as 1e999.

    Raises:
        InputError: the message begins with `where` and names the key.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}: {name} ({value}) must be a finite number; give one, or drop the key")
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            require_finite(item, where, f"{name}.{key}" if name else str(key))


def _parse_yaml(text: str) -> Any:
    loader = _BoundedLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _BoundedLoader(yaml.SafeLoader):
    """YAML loader that rejects a file whose merge keys (`<<`) expand to too many entries, because half a kilobyte of
    nested merge keys could take hours to load."""

    _merged = 0

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct the Python value of a YAML node.

        Raises:
            MarkedYAMLError: the node cannot be read as a value, or its tag contradicts its text, as in `!!int x`.
        """
        try:
            return super().construct_object(node, deep)
        # PyYAML's constructors take the text apart without a look at it: `!!int` of nothing, `!!bool x`, `!!timestamp x`.
        except (IndexError, KeyError, AttributeError):
            problem = f"its value is no {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace a mapping's merge keys by their entries.

        Raises:
            ValueError: the file's mappings have too many entries.
        """
        super().flatten_mapping(node)
        self._merged += len(node.value)
        if self._merged > _MOST_ENTRIES:
            raise ValueError(f"its merge keys make more than {_MOST_ENTRIES:,} entries")


def _within_limits(value: Any) -> Any:
    """Return a YAML value unchanged, or raise an error if it has too many entries once its aliases are written out. A
    kilobyte of nested aliases could become gigabytes of JSON.

    Raises:
        ValueError: the value has too many entries.
    """
    left, waiting = _MOST_ENTRIES, [value]
    while waiting:
        entry = waiting.pop()
        inner = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list | tuple) else ()
        left -= len(inner)
        if left < 0:
            raise ValueError(f"more than {_MOST_ENTRIES} entries with its aliases")
        waiting.extend(inner)
    return value


def _read_if_file(value: JsonValue, folder: Path) -> JsonValue:
    return read_object(folder / value) if isinstance(value, str) and value.endswith(SUFFIXES) else value
