"""Read the options of `shardtune plan` that are lists: numbers of GPUs, prices, measurements."""

import json
import re
from pathlib import Path
from typing import Any

from shardtune.service.cli.errors import InputError

_MOST_DOUBLINGS = 32


def read_counts(text: str) -> tuple[int, ...]:
    """Numbers of GPUs: `8..1024` doubles from 8 to 1024, `8,16,24` lists them.

    Raises:
        InputError: text of neither form, or a range that ends before it begins.
    """
    counts = list[int]()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\.\.(\d{1,9}))?\s*", part)
        if match is None:
            raise InputError(
                f"--counts ({part[:40]!r}) must be a number, or a range such as 8..1024; list several with commas"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if first < 1 or last < first:
            raise InputError(f"--counts ({part}) must begin at 1 or more and not end before it begins; try 8..1024")
        counts += [first << power for power in range(_MOST_DOUBLINGS) if first << power <= last]
    return tuple(dict.fromkeys(counts))


def read_prices(text: str | None, file: Path | None) -> dict[str, float]:
    """Prices of a GPU-hour by kind: `h100=2.10,h200=2.60`, or a JSON object in a file. Those on the command line count.

    Raises:
        InputError: text or a file of another form.
    """
    prices = dict[str, float]()
    if file is not None:
        content = _read_json(file, "--prices")
        if not isinstance(content, dict) or not all(_is_number(value) for value in content.values()):
            raise InputError(f'--prices ({file}) must be a JSON object of numbers, such as {{"h100": 2.1}}')
        prices |= {str(name): float(value) for name, value in content.items()}
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        try:
            prices[name.strip()] = float(value)
        except ValueError:
            raise InputError(
                f"--price ({part[:40]!r}) must read like h100=2.10: kind, and price of a GPU-hour"
            ) from None
    return prices


def read_measurements(file: Path | None) -> list[Any]:
    """Measurements on a few GPUs: a JSON list of `gpu`, `gpus`, `config`, `tokens_per_s_per_gpu`.

    Raises:
        InputError: a file of another form.
    """
    if file is None:
        return []
    content = _read_json(file, "--measured")
    if not isinstance(content, list):
        raise InputError(f"--measured ({file}) must be a JSON list of measurements; see `POST /v1/plans`")
    return content


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_json(file: Path, option: str) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{option} ({file}) cannot be read: {error.strerror}; give a JSON file") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{option} ({file}) is not JSON: {error}; correct it") from None
