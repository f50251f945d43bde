"""Read the lengths of a training's samples from a JSONL file: `--data FILE`, or a path in a study file."""

import codecs
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import JsonValue

from shardtune.api_schemas.access import regular_file
from shardtune.api_schemas.training.sample_lengths import checked_length, merge_lengths
from shardtune.service.cli.errors import InputError

_MOST_BYTES = 1 << 30
MOST_LINES = 10_000_000
"""Maximum number of lines in a file of sample lengths. A histogram of 256 bins gains nothing from more samples, and
parsing them takes minutes."""
_CHUNK = 1 << 22
_SHORT_LINE, _MOST_KNOWN = 16, 65_536
"""Limits of the cache of parsed lines: maximum bytes of a cached line, and maximum number of cached lines."""
_LONGEST_LINE = 64 << 20
"""Maximum bytes of one line in a file of sample lengths. The token ids of the longest allowed sample take half of this
limit."""
_KEYS = ("input_ids", "length")
_FORMAT = "give one JSON value a line: a number of tokens, a list of token ids, or an object with input_ids or length"
_TEXTS = {"text", "messages", "conversations", "prompt"}
"""Fields of training data whose tokens nobody counted yet."""
_COUNT = (
    "this looks like training data, but the samples' lengths in tokens are wanted: count them with your tokenizer "
    "(script in docs/how-to/samples-of-several-lengths.md) and write one number a line"
)


def read(path: Path) -> list[JsonValue]:
    """Read a file of sample lengths and return their histogram in a study's format: pairs of length and number of
    samples.

    Raises:
        InputError: the file cannot be read, is too large, or one of its lines holds no sample.
    """
    counts: Counter[int] = Counter()
    known: dict[bytes, int] = {}
    lines = lists = 0
    try:
        with regular_file.open_regular(path, _MOST_BYTES) as file:
            _check_number_of_lines(path, file)
            for number, line in _lines(path, file):
                length = known.get(line)
                if length is None:
                    length = _length_of(line, f"{path}, line {number}")
                    if len(line) <= _SHORT_LINE and len(known) < _MOST_KNOWN:
                        known[line] = length
                counts[length] += 1
                lines, lists = lines + 1, lists + line.lstrip().startswith(b"[")
    except regular_file.IrregularFile as error:
        is_large = isinstance(error, regular_file.TooLarge)
        remedy = "write the lengths alone, one number a line" if is_large else _FORMAT
        raise InputError(f"data ({path!s:.500}) cannot be read: {error}; {remedy}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"data ({path!s:.500}) cannot be read: {reason}; {_FORMAT}") from None
    # Lengths or pairs in lists would count as samples of a few token ids.
    if lines and lists == lines and (lines == 1 or counts.keys() == {2}):
        raise InputError(
            f"data ({path}) may hold lengths in lists, where a list stands for the token ids of one sample; {_FORMAT}, "
            "or write the list into the study as workload.data.lengths"
        )
    if not counts:
        raise InputError(f"data ({path}) holds no samples; {_FORMAT}")
    return [[length, count] for length, count in merge_lengths(counts)]


def option_values(file: Path | None, layout: str | None) -> dict[str, JsonValue]:
    """Return the fields of a workload's data that the options `--data` and `--layout` state; empty without these
    options."""
    stated: dict[str, JsonValue] = {} if file is None else {"lengths": read(file)}
    return stated if layout is None else {**stated, "layout": layout}


def with_file(data: JsonValue, folder: Path) -> JsonValue:
    """Return the `workload.data` of a study file. If it contains the path of a file of sample lengths, the path is
    replaced by the histogram of these lengths."""
    if isinstance(data, str):
        return {"lengths": read(folder / data)}
    if isinstance(data, dict) and isinstance(name := data.get("lengths"), str):
        return {**data, "lengths": read(folder / name)}
    return data


def _check_number_of_lines(path: Path, file: BinaryIO) -> None:
    """Reject a file with too many lines before any line is parsed, and move back to its beginning."""
    lines = 0
    while chunk := file.read(_CHUNK):
        lines += chunk.count(b"\n")
        if lines > MOST_LINES:
            raise InputError(
                f"data ({path}) has more than {MOST_LINES:,} lines; a random part has the same lengths: "
                f"shuf -n 1000000 {path.name} > part.jsonl"
            )
    file.seek(0)


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not empty, each with its line number, counted from 1."""
    number = 0
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            raise InputError(f"{path}, line {number} has more than {_LONGEST_LINE >> 20} MiB; {_FORMAT}")
        # Editors on Windows begin a file with a mark; a list behind it is still a list.
        line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if line.strip():
            yield number, line


def _length_of(line: bytes, where: str) -> int:
    """Return the number of tokens of the sample that a line describes."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{where} is not JSON ({line[:40].decode(errors='replace').strip()!r}); {_FORMAT}") from None
    if isinstance(value, dict):
        key = next((key for key in _KEYS if key in value), None)
        if key is None:
            raise InputError(
                f"{where} has neither input_ids nor length; {_COUNT if _TEXTS & value.keys() else _FORMAT}"
            )
        value = value[key]
    if isinstance(value, str) or (isinstance(value, list) and not all(type(token) is int for token in value[:8])):
        raise InputError(f"{where} holds no token ids; count tokens with your tokenizer: {_FORMAT}")
    try:
        return checked_length(len(value) if isinstance(value, list) else value, where)
    except ValueError as error:
        raise InputError(str(error)) from None
