"""Upgrades without an outage: code of the former release goes on with a schema that only grew."""

import ast
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select, text, update

from shardtune.api_schemas.access.keys import Quotas
from shardtune.api_schemas.trials.trial import AttemptEnd, RunPurpose
from shardtune.db.migrations import versions
from shardtune.db.preparation import prepare_database
from shardtune.db.revisions import DatabaseNotMigrated, revision_problem
from shardtune.db.session import Database, make_engine, upgrade
from shardtune.db.tables.access import ProjectRow
from shardtune.db.tables.schema import SchemaCompatibilityRow
from tests.support.foreign_revisions import at_revision

SCRIPTS = sorted(Path(versions.__file__).parent.glob("0*.py"))
NEWEST = SCRIPTS[-1].stem


def upgraded_by_next_release(url: str, oldest_code: str) -> None:
    """Database that the next release has upgraded: a column more, and its declaration of the oldest code."""
    upgrade(url)
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE projects ADD COLUMN of_next_release INTEGER DEFAULT 0 NOT NULL"))
        connection.execute(update(SchemaCompatibilityRow).values(revision="0099_next", oldest_code=oldest_code))
    engine.dispose()
    at_revision(url, "0099_next")


def problem_of(database: Database) -> str | None:
    with database.read_connection() as connection:
        return revision_problem(connection)


def test_a_migration_records_the_oldest_code_that_can_use_the_schema(empty_database_url):
    upgrade(empty_database_url)
    database = Database(empty_database_url)
    with database.read() as session:
        row = session.scalars(select(SchemaCompatibilityRow)).one()
        assert (row.revision, row.oldest_code) == (NEWEST, vars_of(SCRIPTS[-1])["oldest_code"])
    database.close()


@pytest.mark.parametrize("migrate", [True, False])
def test_a_replica_goes_on_after_the_next_release_has_expanded_the_schema(empty_database_url, migrate):
    upgraded_by_next_release(empty_database_url, oldest_code=NEWEST)
    database = Database(empty_database_url)
    prepare_database(database, empty_database_url, migrate)
    assert problem_of(database) is None
    with database.write() as session:
        session.add(ProjectRow(id="team-b", quotas=Quotas(), created_at=datetime(2026, 11, 1, tzinfo=UTC)))
    with database.read() as session:
        assert session.scalar(text("SELECT of_next_release FROM projects WHERE id = 'team-b'")) == 0
        assert session.scalar(text("SELECT version_num FROM alembic_version")) == "0099_next"
    database.close()


def test_a_replica_is_not_ready_after_the_schema_was_contracted(empty_database_url):
    upgraded_by_next_release(empty_database_url, oldest_code="0099_next")
    database = Database(empty_database_url)
    assert "0099_next, which this version of Shardtune does not know" in (problem_of(database) or "")
    with pytest.raises(DatabaseNotMigrated, match="install the version that upgraded it"):
        prepare_database(database, empty_database_url)
    database.close()


def vars_of(script: Path) -> dict[str, object]:
    """Constants of a migration."""
    return {
        node.targets[0].id: node.value.value
        for node in ast.parse(script.read_text()).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }


@pytest.mark.parametrize("script", SCRIPTS[2:], ids=lambda path: path.stem)
def test_a_migration_that_allows_older_code_only_adds(script):
    """The oldest code is declared; if it is older than the migration, the migration neither drops, renames nor requires."""
    names = vars_of(script)
    assert "oldest_code" in names, f"{script.name} does not say oldest_code: see db/migrations/script.py.mako"
    if names["oldest_code"] == names["revision"]:
        return
    body = next(n for n in ast.parse(script.read_text()).body if isinstance(n, ast.FunctionDef) and n.name == "upgrade")
    calls = [call for call in ast.walk(body) if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)]
    forbidden = [call.func.attr for call in calls if call.func.attr.startswith(("drop_", "rename_", "alter_"))]
    assert not forbidden, f"{script.name}: {forbidden} break older code"
    for column in (call for call in calls if call.func.attr == "Column"):
        options = {keyword.arg: keyword.value for keyword in column.keywords}
        required = isinstance(options.get("nullable"), ast.Constant) and options["nullable"].value is False
        assert not required or "server_default" in options, f"{script.name}: a required column needs a server default"


READ_SINCE = {
    RunPurpose.RECIPE: "0006_recipes",
    RunPurpose.REHEARSAL: "0009_rehearsals",
    RunPurpose.SUSTAINED: "0010_waits_of_attempts",
    AttemptEnd.PREEMPTED: "0010_waits_of_attempts",
}
"""Oldest code that reads a stored word; words that are not listed are read by all code."""
WORDS_OF_ALL_CODE = 5 + 17
"""Purposes of runs, and ends of attempts."""


def test_code_that_cannot_read_a_stored_word_does_not_use_the_schema():
    """A word that the column's type does not know is an error for whoever reads the row: study and queue stand still."""
    assert len([*RunPurpose, *AttemptEnd]) == WORDS_OF_ALL_CODE + len(READ_SINCE), "list the new word with its revision"
    oldest_code = str(vars_of(SCRIPTS[-1])["oldest_code"])
    unreadable = {word.value: since for word, since in READ_SINCE.items() if since > oldest_code}
    assert not unreadable, f"code of {oldest_code} may use the schema, and cannot read {unreadable}"
