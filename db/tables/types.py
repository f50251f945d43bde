"""Column types that behave the same on SQLite and Postgres."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import JSON, DateTime, Dialect, Enum, TextClause, text
from sqlalchemy.types import TypeDecorator

T = TypeVar("T")


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC, aware also when it comes from SQLite, which stores none of the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a naive time: it would be stored as if it were UTC."""
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
    """One of our frozen values, or a tuple of words, as JSON; None is SQL NULL."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def __init__(self, kind: type[T]) -> None:
        super().__init__()
        self.kind = kind
        self._adapter = TypeAdapter(kind)

    def process_bind_param(self, value: T | None, dialect: Dialect) -> Any:
        """The value as plain JSON."""
        return None if value is None else self._adapter.dump_python(value, mode="json")

    def process_result_value(self, value: Any, dialect: Dialect) -> T | None:
        """The value, validated again: a row edited by hand fails here, not in the search."""
        return None if value is None else self._adapter.validate_python(value)

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        """Compare as this type."""
        return self


def among(column: str, states: Sequence[StrEnum]) -> TextClause:
    """The condition of an index: the column has one of these words."""
    return text(f"{column} IN ({', '.join(repr(state.value) for state in states)})")


def words(kind: type[StrEnum], length: int = 16) -> Enum:
    """A column of one of our word lists, stored as the word itself, without a database type to migrate."""
    return Enum(
        kind, native_enum=False, create_constraint=False, length=length, values_callable=lambda e: [m.value for m in e]
    )
