"""Read the options of `shardtune plan` that are lists: numbers of GPUs, prices, measurements."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from shardtune.api_schemas.trials.plans import fold_gpu_name
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.read import read_text
from shardtune.tuner.plans import written_lists

Value = TypeVar("Value")


def read_counts(text: str) -> tuple[int, ...]:
    """Read numbers of GPUs: `8..1024` stands for 8, 16, 32 and so on up to 1024, `8,16,24` lists them.

    Raises:
        InputError: the text has neither form, or is a range that ends before it begins.
    """
    return _as_option(lambda: written_lists.read_counts(text))


def read_prices(text: str | None, file: Path | None) -> dict[str, float]:
    """Read the prices of a GPU-hour by kind of GPU: `h100=2.10,h200=2.60`, or a JSON object in a file. A price on the
    command line replaces the price in the file.

    Raises:
        InputError: the text or the file does not have this form.
    """
    prices = dict[str, float]()
    if file is not None:
        content = _read_json(file, "--prices")
        if not isinstance(content, dict) or not all(_is_number(value) for value in content.values()):
            raise InputError(f'--prices ({file}) must be a JSON object of numbers, such as {{"h100": 2.1}}')
        prices |= {str(name): float(value) for name, value in content.items()}
    stated = _as_option(lambda: written_lists.read_prices(text)) if text else {}
    replaced = {fold_gpu_name(name) for name in stated}
    return {name: price for name, price in prices.items() if fold_gpu_name(name) not in replaced} | stated


def _as_option(read: Callable[[], Value]) -> Value:
    """Read a list of values; error messages name the command's option, such as `--counts`, in place of the field."""
    try:
        return read()
    except ValueError as error:
        raise InputError(f"--{error}") from None


def read_measurements(file: Path | None) -> list[Any]:
    """Read measurements on a few GPUs: a JSON list of objects with `gpu`, `gpus`, `config`, `tokens_per_s_per_gpu`.

    Raises:
        InputError: the file does not have this form.
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
        return json.loads(read_text(file, option, "give a JSON file"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{option} ({file}) is not JSON: {error}; correct it") from None
