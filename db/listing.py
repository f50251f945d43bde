"""Parts of a list: sorted and cut by the database."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, SQLColumnExpression


@dataclass(frozen=True)
class Page:
    """Which part of a list."""

    sort: str
    descending: bool = False
    limit: int = 50
    offset: int = 0


def paged(query: Select[Any], key: SQLColumnExpression[Any], tie: Any, page: Page) -> Select[Any]:
    """The query cut to a page; what lacks the figure that sorts comes last, and `tie` decides between equals."""
    direction = key.desc() if page.descending else key.asc()
    return query.order_by(direction.nulls_last(), tie).limit(page.limit).offset(page.offset)
