"""`--fingerprint-override FIELD=VALUE`: report a field of the fingerprint otherwise, to try out what a change causes."""

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
"""To check values before anything is detected."""
_TYPES = get_type_hints(Fingerprint)


def overridden(found: Fingerprint, values: Mapping[str, str]) -> Fingerprint:
    """With declared values in place of detected ones, and marked so.

    Raises:
        ValueError: names the field that cannot have its value.
    """
    if not values:
        return found
    name = ""
    try:
        typed: dict[str, object] = {}
        for name, text in values.items():
            # Text is no number in our schemas, and nothing but text on a command line.
            typed[name] = TypeAdapter(_TYPES[name]).validate_python(text)
            Fingerprint.model_validate(_ANY.model_dump() | {name: typed[name]})
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise ValueError(
            f"fingerprint_override ({name}={values[name]}): {message}; give a value as `detect` shows one"
        ) from None
    return found.model_copy(update=typed | {"overridden": tuple(sorted(values))})


def split_overrides(entries: Sequence[str]) -> dict[str, str]:
    """`FIELD=VALUE` texts by field.

    Raises:
        ValueError: not of that form, no such field, or nothing it can have.
    """
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or not value:
            raise ValueError(f"fingerprint_override ({entry!r}) must be FIELD=VALUE, such as driver=560.35.03")
        if name not in OVERRIDABLE:
            raise ValueError(
                f"fingerprint_override ({name!r}) is not a field of the fingerprint; choose from {', '.join(OVERRIDABLE)}"
            )
        found[name] = value
    overridden(_ANY, found)
    return found
