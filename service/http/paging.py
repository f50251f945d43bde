"""Keyset paging of lists: a page token names the last row of a page and its list, so rows added meanwhile shift no
page.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, TypeVar

from fastapi import Query

from shardtune.service.http.errors import Invalid, invalid
from shardtune.service.http.input_guard import check_value

LimitParam = Annotated[int, Query(ge=1, le=500, description="Rows per page.")]
PageTokenParam = Annotated[
    str | None, Query(max_length=3000, description="`next_page_token` of the page before, with the same filters.")
]

Row = TypeVar("Row")


def moment_and_id(value: object) -> tuple[datetime, str]:
    """Parse the page position in a list that is sorted by time: a moment and an id."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(value)
    moment = datetime.fromisoformat(str(value[0]))
    if moment.tzinfo is None:
        raise ValueError(value)
    return moment.astimezone(UTC), str(value[1])


def name_and_id(value: object) -> tuple[str, str]:
    """Parse the page position in a list that is sorted by name: a name and an id."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(value)
    return str(value[0]), str(value[1])


def whole_number(value: object) -> int:
    """Parse the page position in a list that is sorted by a whole number."""
    # A token comes from outside: a larger number would exceed the database's integer column.
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**31:
        raise ValueError(value)
    return value


def parse_token(token: str | None, filters: Sequence[object], parse_position: Callable[[object], Row]) -> Row | None:
    """Return the position after which a page begins, or None for the first page.

    Raises:
        Invalid: the token was issued for another list.
    """
    if token is None:
        return None
    try:
        stored = json.loads(base64.urlsafe_b64decode(token.encode("ascii", "strict")))
        check_value(stored, "page_token")
        # The token holds a hash of the filters: with other filters its position would skip rows without notice.
        if not isinstance(stored, dict) or stored.get("f") != _filters_key(filters):
            raise ValueError("other filters")
        return parse_position(stored.get("at"))
    except (ValueError, ArithmeticError, RecursionError, Invalid):
        message = "is not a token of this list with these filters; start again without one"
        raise invalid("page_token", token, message, code="invalid_page_token") from None


def split_page(
    rows: Sequence[Row], limit: int, filters: Sequence[object], position_of: Callable[[Row], object]
) -> tuple[Sequence[Row], str | None]:
    """Split `limit` + 1 rows into a page of `limit` rows and the token of the next page, if more rows follow."""
    if len(rows) <= limit:
        return rows, None
    content = {"at": position_of(rows[limit - 1]), "f": _filters_key(filters)}
    return rows[:limit], base64.urlsafe_b64encode(json.dumps(content, default=str).encode()).decode()


def _filters_key(filters: Sequence[object]) -> str:
    return hashlib.sha256(repr([str(value) for value in filters]).encode()).hexdigest()[:12]
