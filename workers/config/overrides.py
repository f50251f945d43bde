"""Overrides of fingerprint fields (hardware and software versions), by `--fingerprint-override FIELD=VALUE`, to try out
the effects of a change."""

from collections.abc import Mapping, Sequence
from typing import get_type_hints

from pydantic import TypeAdapter, ValidationError

from shardtune.api_schemas.machines.hardware import OVERRIDABLE, Fingerprint

_ANY = Fingerprint(
    device="cpu",
    gpu="cpu",
    gpu_count=0,
    gpu_memory_gib=None,
    driver=None,
    cuda=None,
    nccl=None,
    torch=None,
    deepspeed=None,
    transformers=None,
    python="3",
    kernel="6",
    cpu="any",
    cpu_count=1,
    host_memory_gib=1,
)
"""Placeholder for the machine's fingerprint (hardware and software versions). Override values are checked against it
before the real hardware is detected."""
_TYPES = get_type_hints(Fingerprint)


def override(detected: Fingerprint, values: Mapping[str, str]) -> Fingerprint:
    """Replace detected values of the machine's fingerprint (hardware and software versions) by those that the worker's
    owner has set, and mark these fields as overridden.

    Raises:
        ValueError: a value is invalid; the message names its field.
    """
    if not values:
        return detected
    name = ""
    try:
        typed: dict[str, object] = {}
        for name, text in values.items():
            # Schemas are strict and take no text for a number; a command line has only text, so each field converts it.
            typed[name] = TypeAdapter(_TYPES[name]).validate_python(text)
            Fingerprint.model_validate(_ANY.model_dump() | {name: typed[name]})
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise ValueError(
            f"fingerprint_override ({name}={values[name]}): {message}; give a value as `detect` shows one"
        ) from None
    return detected.model_copy(update=typed | {"overridden": tuple(sorted(values))})


def split_overrides(entries: Sequence[str]) -> dict[str, str]:
    """Split the overrides' `FIELD=VALUE` texts into values by field.

    Raises:
        ValueError: a text has another form, names an unknown field, or has an invalid value.
    """
    values: dict[str, str] = {}
    for entry in entries:
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or not value:
            raise ValueError(f"fingerprint_override ({entry!r}) must be FIELD=VALUE, such as driver=560.35.03")
        if name not in OVERRIDABLE:
            raise ValueError(
                f"fingerprint_override ({name!r}) is not a field of the fingerprint; choose from {', '.join(OVERRIDABLE)}"
            )
        values[name] = value
    override(_ANY, values)
    return values
