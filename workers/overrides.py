"""`--fingerprint-override FIELD=VALUE`: report a field of the fingerprint otherwise, to try out what a change causes."""

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from api_schemas.hardware import OVERRIDABLE, Fingerprint


def overridden(found: Fingerprint, values: Mapping[str, str]) -> Fingerprint:
    """With declared values in place of detected ones, and marked so.

    Raises:
        ValueError: names the field that cannot have its value.
    """
    if not values:
        return found
    try:
        return Fingerprint.model_validate(found.model_dump() | dict(values) | {"overridden": tuple(sorted(values))})
    except ValidationError as error:
        item = error.errors()[0]
        name = str(item["loc"][0])
        raise ValueError(
            f"--fingerprint-override {name}={values.get(name)}: {item['msg']}; give a value as `detect` shows one"
        ) from None


def split_overrides(entries: Sequence[str]) -> dict[str, str]:
    """`FIELD=VALUE` texts by field.

    Raises:
        ValueError: not of that form, or no such field.
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
    return found
