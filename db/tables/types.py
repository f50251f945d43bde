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

T = TypeVar("T")
_MOST_KEPT = 1024
"""Number of cached values of one column."""
_LONGEST_KEPT = 16 * 1024
"""Longest text of a cached value: a sender of many long ones would fill the memory of each replica."""


def as_text(stored: str | bytes) -> str | bytes:
    """Leave JSON as text for the drivers, since `Stored` reads the text itself."""
    return stored


class UtcDateTime(TypeDecorator[datetime]):
    """Moment in UTC, aware also when it comes from SQLite, which stores none of the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Reject a naive time: it would be stored as if it were UTC."""
        if value is None:
            return None
        assert value.tzinfo is not None, f"naive time {value}"
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Attach the zone SQLite dropped."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Stored(TypeDecorator[T]):
    """Frozen value of ours, or a tuple of words, as JSON; None is SQL NULL."""

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
        """Dump the value as plain JSON."""
        return None if value is None else self._adapter.dump_python(value, mode="json")

    def process_result_value(self, value: Any, dialect: Dialect) -> T | None:
        """Validate the value again: a row edited by hand fails here, not in the search."""
        if value is None:
            return None
        return self._parse(value) if len(value) <= _LONGEST_KEPT else self._adapter.validate_json(value)

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        """Compare as this type."""
        return self


class Packed(TypeDecorator[T]):
    """Frozen value of ours as compressed JSON, for values of which no part is queried. None is SQL NULL."""

    impl = LargeBinary
    cache_ok = True

    def __init__(self, kind: type[T]) -> None:
        super().__init__()
        self.kind = kind
        self._adapter = TypeAdapter(kind)

    def process_bind_param(self, value: T | None, dialect: Dialect) -> bytes | None:
        """Compress the value's JSON."""
        return None if value is None else self.packed(value)

    def packed(self, value: T) -> bytes:
        """Return the value as it is stored."""
        return zlib.compress(self._adapter.dump_json(value, exclude_defaults=True))

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> T | None:
        """Validate the value again."""
        return None if value is None else self._adapter.validate_json(zlib.decompress(value))


class AnyJson(TypeDecorator[Any]):
    """JSON without a schema of ours, for queries that return the stored text as it is."""

    impl = JSON
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Parse the stored JSON."""
        return None if value is None else json.loads(value)


def among(column: str, states: Sequence[StrEnum]) -> TextClause:
    """Return the condition of an index: the column has one of these words."""
    return text(f"{column} IN ({', '.join(repr(state.value) for state in states)})")


def words(kind: type[StrEnum], length: int = 16) -> Enum:
    """Make a column of one of our word lists, stored as the word itself, without a database type to migrate."""
    return Enum(
        kind, native_enum=False, create_constraint=False, length=length, values_callable=lambda e: [m.value for m in e]
    )
