"""Sort and paginate query results in the database."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, SQLColumnExpression, func, select
from sqlalchemy.orm import Session


@dataclass(frozen=True)
class Page:
    """One page of a list: the column to sort by, and the range of rows."""

    sort: str
    descending: bool = False
    limit: int = 50
    offset: int = 0


def cut_to_page(query: Select[Any], key: SQLColumnExpression[Any], tie: Any, page: Page) -> Select[Any]:
    """Sort a query and limit it to one page. Rows without a sort value come last; `tie` is the column that orders
    rows with equal values."""
    direction = key.desc() if page.descending else key.asc()
    return query.order_by(direction.nulls_last(), tie).limit(page.limit).offset(page.offset)


def page_with_total(
    session: Session, query: Select[Any], key: SQLColumnExpression[Any], tie: Any, page: Page
) -> tuple[list[Any], int]:
    """Return the first column of a page's rows, and the number of rows on all pages together, in one query. Meant for
    queries with few columns."""
    rows = session.execute(cut_to_page(query.add_columns(func.count().over()), key, tie, page)).all()
    if rows:
        return [row[0] for row in rows], rows[0][-1]
    if not page.offset:
        return [], 0
    # Behind the last page nothing says how many come before.
    return [], session.scalar(select(func.count()).select_from(query.with_only_columns(tie).subquery())) or 0
