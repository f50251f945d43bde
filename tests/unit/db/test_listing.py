"""Pages of a list, on both databases."""

from datetime import UTC, datetime

from sqlalchemy import insert, select

from shardtune.api_schemas.access.keys import Quotas
from shardtune.db.listing import Page, page_with_total
from shardtune.db.tables.access import ProjectRow


def row(number):
    return {"id": f"list-{number}", "quotas": Quotas(), "created_at": datetime(2026, 1, 1, tzinfo=UTC)}


def test_a_page_knows_how_many_there_are_also_behind_the_last_one(database):
    with database.write() as session:
        session.execute(insert(ProjectRow), [row(number) for number in range(5)])
    query = select(ProjectRow.id).where(ProjectRow.id.startswith("list-"))

    def page(offset, expected=query):
        with database.read() as session:
            return page_with_total(session, expected, ProjectRow.id, ProjectRow.id, Page("id", limit=2, offset=offset))

    assert page(0) == (["list-0", "list-1"], 5)
    assert page(4) == (["list-4"], 5)
    assert page(6) == ([], 5)
    assert page(0, query.where(ProjectRow.id == "none")) == ([], 0)
