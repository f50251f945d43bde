"""Errors of the database name what failed, and hold no value of the statement."""

import logging
import traceback

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, StatementError

from shardtune.db.session import Database

SECRET = "hunter2-of-a-webhook"
FAILING = {
    "no such table": "INSERT INTO missing (a) VALUES (:secret)",
    "twice the same": "INSERT INTO guarded (name, amount) VALUES (:secret, 2)",
    "a check": "INSERT INTO guarded (name, amount) VALUES (:secret, -1)",
    "nothing": "INSERT INTO guarded (name, amount) VALUES (:secret, NULL)",
    "no number": "SELECT CAST(:secret AS integer) / CAST(name AS integer) FROM guarded WHERE (:secret || '1')::int = 1",
}


@pytest.fixture
def database(database_url):
    database = Database(database_url)
    with database.write() as session:
        session.execute(text("CREATE TABLE guarded (name TEXT PRIMARY KEY, amount INT NOT NULL CHECK (amount > 0))"))
        session.execute(text("INSERT INTO guarded VALUES (:secret, 1)"), {"secret": SECRET})
    yield database
    database.close()


@pytest.mark.parametrize("statement", FAILING.values(), ids=FAILING.keys())
def test_no_error_or_log_line_of_a_failing_statement_has_its_parameter(database, statement, caplog):
    with pytest.raises(DBAPIError) as failed, database.write() as session:
        session.execute(text(statement), {"secret": SECRET})
    logging.getLogger("of.the.service").error("request failed", exc_info=failed.value)
    shown = "".join(traceback.format_exception(failed.value)) + caplog.text + repr(failed.value)
    assert SECRET not in shown
    assert "guarded" in shown or "missing" in shown


def test_a_parameter_of_a_wrong_type_is_not_shown(database):
    with pytest.raises((StatementError, DBAPIError)) as failed, database.write() as session:
        session.execute(text("INSERT INTO guarded VALUES (:secret, 3)"), {"secret": [{SECRET: object()}]})
    assert SECRET not in "".join(traceback.format_exception(failed.value))
