"""Section of a user's configuration file: typed reading of its keys, and a list of the keys that were not read."""

import math
from collections.abc import Mapping

from pydantic import JsonValue, ValidationError

from shardtune.api_schemas.known_fields import fields_at, model_named, rephrase_error, suggest_field
from shardtune.api_schemas.training.search_space import BACKENDS

_AUTO = "auto"


_LARGEST = 2**63
"""Largest magnitude of an integer that is accepted from a file: larger ones are no sensible size, and may not convert
to a float."""


class Section:
    """Section of a configuration file that records which keys were read, so that unread keys can be reported."""

    def __init__(self, values: Mapping[str, JsonValue], path: str, names: Mapping[str, str] | None = None) -> None:
        """Create a section from its values and its path in the file. `names` maps a key of `values` to the key that the
        user wrote, where the two differ."""
        self._values, self._path, self._names = values, path, names or {}
        self._read: set[str] = set()

    def name(self, key: str) -> str:
        """Full path of a key of this section in the configuration file, for messages."""
        return f"{self._path}.{self._names.get(key, key)}"

    def get(self, key: str) -> JsonValue:
        """Value of a key in the section of a configuration file; None where the key is absent, null or `auto`."""
        self._read.add(key)
        value = self._values.get(key)
        return None if value == _AUTO else value

    def number(self, key: str) -> float | None:
        """Number that a configuration file gives for a key, also one that YAML reads as text (1e-5); None where absent.
        Raises ValueError for any other type."""
        value = self.get(key)
        if isinstance(value, str):
            value = _parse_number(value)
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise ValueError(f"{self.name(key)} is an integer beyond 64 bits; give a smaller number")
        # JSON reads 1e999 as infinity, and YAML has words for it.
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f'{self.name(key)} ({value}) must be a finite number; give one, or "auto"')
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        raise ValueError(f'{self.name(key)} ({value!r}) must be a number; give one, or "auto"')

    def integer(self, key: str) -> int | None:
        """Integer that a configuration file gives for a key, also where JSON wrote it as 5e8; None where absent. Raises
        ValueError for any other value."""
        value = self.number(key)
        if value is None or value == int(value):
            return None if value is None else int(value)
        raise ValueError(f'{self.name(key)} ({value}) must be a whole number; give one, or "auto"')

    def flag(self, key: str) -> bool | None:
        """Boolean that a configuration file gives for a key, also one written as text or as 0 or 1; None where absent.
        Raises ValueError for any other value."""
        value = self.get(key)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if value is None or isinstance(value, bool):
            return value
        # DeepSpeed and Python's libraries take numbers for booleans: `"wall_clock_breakdown": 1`.
        if isinstance(value, int | float) and value in (0, 1):
            return bool(value)
        raise ValueError(f'{self.name(key)} ({value!r}) must be true or false; use one of them, or "auto"')

    def text(self, key: str) -> str | None:
        """String that a configuration file gives for a key; None where absent. Raises ValueError for any other type."""
        value = self.get(key)
        if value is None or isinstance(value, str):
            return value
        raise ValueError(f"{self.name(key)} ({value!r}) must be a string; put it in quotes")

    def word(self, key: str) -> str | None:
        """String that a configuration file gives for a key, in lower case; a number or a YAML boolean (`no`) is
        converted to the word that the user wrote."""
        value = self.get(key)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return None if value is None else str(value).lower()

    def section(self, key: str) -> "Section":
        """Nested section of a configuration file at a key, empty where the key is absent. Raises ValueError for any
        other type."""
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise ValueError(
                f"{self.name(key)} ({value!r}) must be an object; give its content here, or tune a study file beside it"
            )
        return Section(value or {}, self.name(key))

    def values(self) -> dict[str, JsonValue]:
        """Copy of all keys and values of this section of a configuration file; reading the copy does not record its
        keys as read."""
        return dict(self._values)

    def with_values(self, values: Mapping[str, JsonValue]) -> "Section":
        """Copy of this section of a configuration file with other values."""
        return Section(values, self._path, self._names)

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def unread(self, silent: frozenset[str] = frozenset()) -> list[str]:
        """Full paths of the keys of a configuration file that have a value and were not read, without keys known to
        have no effect."""
        return [
            self.name(key)
            for key, value in self._values.items()
            if key not in self._read and key not in silent and value != _AUTO
        ]


def _parse_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def in_words(error: ValidationError, path: str, where: str) -> ValueError:
    """Error whose message is a schema's most useful complaint, with the field's name as the user wrote it."""
    entries = error.errors(include_url=False)
    # Where a field is misspelt, another is missing.
    first = next((entry for entry in entries if entry["type"] == "extra_forbidden"), entries[0])
    kind = model_named(error.title)
    field = ".".join(str(part) for part in (path, *first["loc"]) if part not in BACKENDS)
    match first["type"]:
        case "extra_forbidden":
            remedy = suggest_field(str(first["loc"][-1]), fields_at(kind, first["loc"][:-1]))
            return ValueError(f"{field} ({first['input']!r}) is not a field here; {remedy} (see {where})")
        case "missing":
            return ValueError(f"{field} is missing; add it (see {where})")
        case "union_tag_not_found":
            return ValueError(f"{field}.kind is missing; add it (see {where})")
        case "union_tag_invalid":
            tags = first["ctx"]["expected_tags"]
            return ValueError(f"{field}.kind ({first['ctx']['tag']!r}) must be one of {tags}; correct it (see {where})")
        case "model_type" | "model_attributes_type":
            return ValueError(f"{field} ({first['input']!r}) must be an object; write one (see {where})")
    message = rephrase_error(first["msg"])
    if not first["loc"]:
        return ValueError(f"{path}: {message}")
    # Messages of our own rules name their remedy.
    if first["type"] != "value_error":
        return ValueError(f"{field} ({first['input']!r}) {message}; give such a value, or drop the key (see {where})")
    return ValueError(f"{field} ({first['input']!r}): {message}; see {where} for its fields")
