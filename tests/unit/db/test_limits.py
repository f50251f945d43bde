"""The limits towards the database: what they follow from, and that the server is told."""

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from shardtune.api_schemas.protocol import REQUEST_TIMEOUT_S
from shardtune.db.limits import DatabaseLimits, is_busy, is_outage
from shardtune.db.session import Database
from shardtune.service.settings import Settings


@pytest.mark.parametrize("lease_s", [1, 4, 20, 600])
def test_whoever_waits_gives_up_before_a_lease_ends_and_who_holds_loses_it(lease_s):
    limits = Settings(lease_s=lease_s).database_limits
    assert limits.lock_s < limits.idle_s <= max(2, lease_s / 2)
    assert limits.statement_s < limits.silence_s
    if lease_s > 4:
        assert limits.silence_s < lease_s


@pytest.mark.parametrize("lease_s", [0.1, 1, 20, 25, 26, 60, 3600])
def test_a_worker_waits_longer_than_the_service_waits_for_a_lock_whatever_the_lease(lease_s):
    limits = Settings(lease_s=lease_s).database_limits
    assert limits.lock_s < REQUEST_TIMEOUT_S and limits.pool()["pool_timeout"] < REQUEST_TIMEOUT_S


def test_a_lock_that_outlasts_a_workers_patience_is_rejected():
    with pytest.raises(ValueError, match=r"database_lock_s \(5\) must be at most 4.*SHARDTUNE_DATABASE_LOCK_S"):
        Settings(database_lock_s=5)
    assert Settings(database_lock_s=4).database_limits.lock_s == 4


def test_what_is_set_stands_and_a_long_statement_is_not_taken_for_silence():
    limits = Settings(database_statement_s=100, database_connections=30).database_limits
    assert limits.statement_s == 100 < limits.silence_s
    assert limits.pool()["pool_size"] == 30


def test_parameters_of_the_url_stand_before_ours():
    url = make_url("postgresql://u@h/d?connect_timeout=9&options=-c%20statement_timeout%3D7")
    connect_args = DatabaseLimits().connect_args(url)
    assert "connect_timeout" not in connect_args and connect_args["options"].endswith("-c statement_timeout=7")


@pytest.mark.postgres
def test_the_server_is_told_and_a_row_that_is_held_is_given_up(empty_postgres_url):
    database = Database(empty_postgres_url, DatabaseLimits(lock_s=0.1, statement_s=5, idle_s=3))
    with database.engine.connect() as holder, database.engine.connect() as other:
        assert other.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one() == "3s"
        assert other.execute(text("SHOW statement_timeout")).scalar_one() == "5s"
        holder.execute(text("SELECT pg_advisory_xact_lock(1)"))
        with pytest.raises(OperationalError) as given_up:
            other.execute(text("SELECT pg_advisory_xact_lock(1)"))
        assert is_busy(given_up.value) and is_outage(given_up.value)
    database.close()
