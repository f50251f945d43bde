"""Calls of methods of an FSDP2 model that apply knobs; older versions of torch lack some of the methods."""

import json
from collections.abc import Mapping
from typing import Any

import torch


def apply(model: object, calls: Mapping[str, Any]) -> None:
    """Call each of these methods of a sharded model, by name, with its argument.

    Raises:
        ValueError: the installed torch lacks a method.
    """
    for method, value in calls.items():
        if not hasattr(model, method):
            # Such as `set_separate_reduce_scatter_group`, which torch 2.11 and 2.12 lack.
            raise ValueError(
                f"{method.removeprefix('set_')} ({json.dumps(value)}) needs `FSDPModule.{method}`, which torch {torch.__version__} "
                "lacks; install torch 2.13 or later, or leave the knob at its default"
            )
        getattr(model, method)(value)
