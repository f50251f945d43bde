"""Migrations run both ways on both databases, and leave what the rows declare."""

import time

import pytest
from alembic import command
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect

from shardtune.db.preparation import prepare_database
from shardtune.db.revisions import DatabaseNotMigrated, revision_problem
from shardtune.db.session import Database, make_engine, migration_config, upgrade
from tests.support.foreign_revisions import at_revision


def is_current(engine):
    with engine.connect() as connection:
        return revision_problem(connection) is None


def test_upgrade_check_downgrade_upgrade(empty_database_url):
    engine = make_engine(empty_database_url)
    assert not is_current(engine)
    upgrade(empty_database_url)
    upgrade(empty_database_url)
    assert is_current(engine)
    with migration_config(empty_database_url) as config:
        command.check(config)
    with migration_config(empty_database_url) as config:
        command.downgrade(config, "base")
    assert set(inspect(engine).get_table_names()) <= {"alembic_version"}
    assert not is_current(engine)
    upgrade(empty_database_url)
    assert is_current(engine)
    engine.dispose()


def test_failed_migration_leaves_nothing(empty_database_url):
    with pytest.raises(RuntimeError), migration_config(empty_database_url) as config:
        command.upgrade(config, "head")
        raise RuntimeError("power cut")
    engine = make_engine(empty_database_url)
    assert inspect(engine).get_table_names() == []
    engine.dispose()


@pytest.mark.parametrize("migrate", [True, False])
def test_a_database_of_an_unreleased_revision_is_rejected_with_the_remedy(empty_database_url, migrate):
    at_revision(empty_database_url, "0025")
    database = Database(empty_database_url)
    remedy = "move empty.sqlite3 away together with" if database.is_sqlite else "drop the database empty_"
    sentence = rf"database_url \(.*\) is at revision 0025 of an unreleased version.*; {remedy}.*`shardtune db upgrade`"
    with pytest.raises(DatabaseNotMigrated, match=sentence):
        prepare_database(database, empty_database_url, migrate)
    with pytest.raises(DatabaseNotMigrated, match=sentence):
        upgrade(empty_database_url)
    assert inspect(database.engine).get_table_names() == ["alembic_version"]
    database.close()


def test_a_database_of_a_later_version_is_left_to_that_version(empty_database_url):
    at_revision(empty_database_url, "0099_later")
    with pytest.raises(DatabaseNotMigrated, match=r"0099_later, which this version .* install the version that"):
        upgrade(empty_database_url)


def test_the_first_unreleased_revision_is_not_taken_for_the_initial_one(sqlite_url):
    at_revision(sqlite_url, "0001")
    with pytest.raises(DatabaseNotMigrated, match="revision 0001 of an unreleased version"):
        upgrade(sqlite_url)


def test_sqlite_connections_are_configured(sqlite_url):
    database = Database(sqlite_url)
    with database.read() as session:
        pragmas = {
            name: session.connection().exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 30_000}
    database.close()


@pytest.mark.parametrize(
    ("url", "remedy"),
    [("mysql://x/y", "sqlite:///PATH"), ("nonsense", "sqlite:///PATH"), ("sqlite://", "shardtune.sqlite3")],
)
def test_other_databases_are_rejected_with_a_remedy(url, remedy):
    with pytest.raises(ValueError, match="database_url") as caught:
        Database(url)
    assert remedy in str(caught.value)


def test_password_is_not_shown_in_the_error():
    with pytest.raises(ValueError) as caught:
        Database("mysql://me:secret@host/name")
    assert "secret" not in str(caught.value)


def test_readiness_costs_what_its_question_to_the_database_costs(sqlite_url):
    """Processor seconds: nobody needs a key to ask."""
    engine = make_engine(sqlite_url)

    def heads():
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_heads()

    def cost(ask):
        ask()
        before = time.process_time()
        for _ in range(40):
            ask()
        return time.process_time() - before

    assert cost(lambda: is_current(engine)) < 5 * cost(heads)
    engine.dispose()
