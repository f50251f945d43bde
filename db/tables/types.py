"""Column types that behave the same on SQLite and Postgres."""

import json
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar, get_origin

from pydantic import TypeAdapter
from sqlalchemy import JSON, DateTime, Dialect, Enum, LargeBinary, TextClause, text
from sqlalchemy.types import TypeDecorator

from shardtune.db.tables.stored_form import stored_form

T = TypeVar("T")
_MOST_KEPT = 1024
"""Maximum number of parsed values that are cached for each column."""
_LONGEST_KEPT = 16 * 1024
"""Maximum length of a stored text whose parsed value is cached. Without it, a client could fill the memory of each
replica with many long values."""


def as_text(stored: str | bytes) -> str | bytes:
    """Make the database drivers return JSON as text, since the column type `Stored` parses the text itself."""
    return stored


class UtcDateTime(TypeDecorator[datetime]):
    """Column type for moments in UTC, always with a time zone, even from SQLite, which stores none."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a moment to UTC for storage; reject one without a time zone, which would be stored as if it were UTC."""
        if value is None:
            return None
        assert value.tzinfo is not None, f"naive time {value}"
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the stored moment with the time zone UTC, which SQLite does not store."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Stored(TypeDecorator[T]):
    """Column type for an immutable value of a schema, or a tuple of words, which is stored as JSON; None is stored as
    NULL."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def __init__(self, kind: type[T]) -> None:
        super().__init__()
        self.kind = kind
        self._adapter = TypeAdapter(kind)
        # The same few clusters, configurations and measurements are read again and again, and none of them ever changes.
        is_mutable = get_origin(kind) is dict
        self._parse = self._adapter.validate_json if is_mutable else lru_cache(_MOST_KEPT)(self._adapter.validate_json)

    def process_bind_param(self, value: T | None, dialect: Dialect) -> Any:
        """Convert the schema value to plain JSON for storage. Fields that have their default are left out if that
        default is None, False, zero or empty."""
        return None if value is None else stored_form(self._adapter, value)

    def process_result_value(self, value: Any, dialect: Dialect) -> T | None:
        """Validate the stored JSON when it is loaded, so that a row edited by hand fails here and not in the search."""
        if value is None:
            return None
        return self._parse(value) if len(value) <= _LONGEST_KEPT else self._adapter.validate_json(value)

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        """Return this column type itself for comparisons with values of any other type."""
        return self


class Packed(TypeDecorator[T]):
    """Column type for an immutable value of a schema that is stored as compressed JSON, because no query looks inside
    it; None is stored as NULL."""

    impl = LargeBinary
    cache_ok = True

    def __init__(self, kind: type[T]) -> None:
        super().__init__()
        self.kind = kind
        self._adapter = TypeAdapter(kind)

    def process_bind_param(self, value: T | None, dialect: Dialect) -> bytes | None:
        """Convert the schema value to compressed JSON for storage."""
        return None if value is None else self.packed(value)

    def packed(self, value: T) -> bytes:
        """Return a schema value in its stored form: compressed JSON."""
        return zlib.compress(self._adapter.dump_json(value, exclude_defaults=True))

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> T | None:
        """Decompress and validate the stored value when it is loaded from the database."""
        return None if value is None else self._adapter.validate_json(zlib.decompress(value))


class AnyJson(TypeDecorator[Any]):
    """Column type for JSON without a schema, for queries that return stored JSON unchanged."""

    impl = JSON
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Parse the stored JSON text when it is loaded."""
        return None if value is None else json.loads(value)


def among(column: str, states: Sequence[StrEnum]) -> TextClause:
    """Return the SQL condition of an index that covers only some rows: those in which the column has one of these
    words."""
    return text(f"{column} IN ({', '.join(repr(state.value) for state in states)})")


def words(kind: type[StrEnum], length: int = 16) -> Enum:
    """Return a column type for a fixed list of words. The words are stored as text, because a database enum would
    need a migration for each new word."""
    return Enum(
        kind, native_enum=False, create_constraint=False, length=length, values_callable=lambda e: [m.value for m in e]
    )
