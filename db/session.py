"""Database engine, transactions and migrations for SQLite and Postgres, including everything that differs between
them. Sessions come only from `Database.read()` and `Database.write()`; `Database.read_connection()` gives a connection
to queries that need no session. A write on SQLite begins with BEGIN IMMEDIATE, since deferred transactions that read
first and write later fail with "database is locked" when two run at once.

Note [lock order]: on Postgres a transaction locks rows in this order, which prevents deadlocks: project (whose lock
also guards the GPU-seconds spent by retuning), schedule, study, run, tuning target, canary, retune, worker, webhook,
its messages. It may skip any of them. The study whose projection another one confirms is locked last: whoever holds it
locks no target of the other one.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from psycopg.errors import LockNotAvailable
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, InvalidatePoolError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from shardtune.api_schemas.access import private_folder
from shardtune.db import outbox, sqlite_files
from shardtune.db.clock import DatabaseClock
from shardtune.db.error_texts import hide_values
from shardtune.db.limits import DatabaseLimits
from shardtune.db.revisions import is_of_later_code, reject_unknown_revision, script_config
from shardtune.db.tables.types import as_text

_BUSY_TIMEOUT_MS = 30_000
_USED_S, _IDLE_S = "when it was last used", 1.0
_LONGEST_HOLD_S = 60.0
"""Maximum seconds for which one process may hold an advisory lock, if the database has no limits set."""
_TAKE = text(
    "SELECT set_config('lock_timeout', :patience, true), "
    "set_config('idle_in_transaction_session_timeout', :longest, true), "
    "pg_try_advisory_xact_lock(hashtextextended(:name, 0)) AS got"
)
"""SQL statement that takes an advisory lock within a transaction. It also lets the server end the transaction if the
client stops responding."""
_WAIT = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
_AT_ONCE_S = 0.01
"""Seconds of waiting below which an attempt to take a lock returns at once instead of waiting."""
_MIGRATION_LOCK = 0x5348415244  # "SHARD": serialises concurrent upgrades on Postgres.


class _WriteSession(Session):
    """Database session that records events for the changes it writes. The event listeners are on the class, because
    listeners on each session would cost more than a small transaction."""


event.listen(_WriteSession, "before_flush", outbox.collect_events)
event.listen(_WriteSession, "after_flush", outbox.write_events)


class Database:
    """Database engine, with functions that open its read transactions and write transactions."""

    def __init__(self, url: str, limits: DatabaseLimits | None = None) -> None:
        """Create the engine for a database URL. `limits` contains timeouts; it is None for migrations, maintenance
        and other long work."""
        self.engine = make_engine(url, limits, json_deserializer=as_text)
        self.clock = DatabaseClock(self.engine)
        self._limits = limits
        self._write_engine = self.engine.execution_options(begin_immediate=True)
        # READ COMMITTED gives each statement a state of its own anyway: BEGIN and ROLLBACK around reads would be two
        # round trips for nothing.
        self._read_engine = (
            self.engine if self.is_sqlite else self.engine.execution_options(isolation_level="AUTOCOMMIT")
        )

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is SQLite, which the service migrates automatically."""
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a read-only session. On SQLite it reads one consistent state of the database; on Postgres each query
        reads the newest state."""
        with Session(self._read_engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def read_connection(self) -> Iterator[Connection]:
        """Open a read-only connection for queries that need no row objects. It costs less than a session, which costs
        as much as a small statement."""
        with self._read_engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a write session that commits at its end, or rolls back if an exception leaves it."""
        with _WriteSession(self._write_engine, expire_on_commit=False) as session, session.begin():
            session.info[outbox.CLOCK] = self.clock
            yield session

    @contextmanager
    def advisory_lock(self, name: str, patience_s: float) -> Iterator[bool]:
        """Hold an advisory lock with this name against every other process; yields False if another process held it
        for the whole wait. The lock ends with its connection on Postgres: a process that dies releases it, and one
        that hangs is disconnected. On SQLite, which only a few processes of one machine use, no lock is taken."""
        if self.is_sqlite:
            yield True
            return
        with self.engine.connect() as connection:
            longest_s = self._limits.idle_s if self._limits else _LONGEST_HOLD_S
            patience_s = min(patience_s, self._limits.lock_s if self._limits else patience_s)
            patience, longest = f"{patience_s * 1000:.0f}ms", f"{longest_s * 1000:.0f}ms"
            got = connection.execute(_TAKE, {"name": name, "patience": patience, "longest": longest}).one().got
            try:
                yield got or (patience_s > _AT_ONCE_S and _wait(connection, name))
            finally:
                # Nothing was changed; but with a rollback psycopg drops the statements that the connection has prepared,
                # and each is planned anew. The server may have ended the connection of a holder that took too long.
                with suppress(DBAPIError):
                    connection.commit()

    def close(self) -> None:
        """Close the pooled database connections."""
        self.engine.dispose()


def _wait(connection: Connection, name: str) -> bool:
    """Wait for an advisory lock held by another process; return False if the time limit passed."""
    try:
        connection.execute(_WAIT, {"name": name})
    except OperationalError as error:
        if not isinstance(error.orig, LockNotAvailable):
            raise
        return False
    return True


def parse_url(url: str) -> URL:
    """Parse a database URL and set the installed driver.

    Raises:
        ValueError: the URL is invalid, or is not of SQLite or Postgres.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.get_backend_name() not in ("sqlite", "postgresql"):
        shown = without_secrets(parsed) if parsed else "not a URL"
        raise ValueError(
            f"database_url ({shown}) must be sqlite:///PATH or postgresql://USER@HOST/NAME; set SHARDTUNE_DATABASE_URL"
        )
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.database in (None, "", ":memory:"):
        raise ValueError(
            f"database_url ({without_secrets(parsed)}) names no file, and every connection would see its own empty database; "
            "use sqlite:///.shardtune/shardtune.sqlite3"
        )
    return parsed


def without_secrets(url: URL) -> str:
    """Format a database URL without its secrets, which includes a password given in its query string."""
    return url.set(query={}).render_as_string(hide_password=True)


def make_engine(
    url: str, limits: DatabaseLimits | None = None, mounts: Path = sqlite_files.MOUNTS, **options: Any
) -> Engine:
    """Create a SQLAlchemy engine with the settings needed for SQLite or Postgres; creates the folder of a SQLite
    file.

    `mounts` is the kernel's table of file systems, which decides how SQLite keeps its journal.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        bounded = {"connect_args": limits.connect_args(parsed), **limits.pool()} if limits is not None else {}
        engine = create_engine(parsed, hide_parameters=True, **bounded, **options)
        event.listen(engine, "checkin", _note_use)
        event.listen(engine, "checkout", partial(_check_idle, engine))
        hide_values(engine)
        if limits is not None:
            limits.give_up_silent_servers(engine)
        return engine
    assert parsed.database is not None
    if not Path(parsed.database).parent.exists():
        private_folder.make(Path(parsed.database).parent, "database_url")
    engine = create_engine(parsed, hide_parameters=True, connect_args={"timeout": _BUSY_TIMEOUT_MS / 1000}, **options)
    event.listen(engine, "do_connect", sqlite_files.make_private)
    event.listen(engine, "connect", partial(_configure_sqlite, sqlite_files.journal_of(Path(parsed.database), mounts)))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _note_use(_connection: Any, record: ConnectionPoolEntry) -> None:
    record.info[_USED_S] = time.monotonic()


def _check_idle(engine: Engine, connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
    """Check that a pooled connection works, like `pool_pre_ping`. It is not checked if it was used a moment ago,
    because a check between consecutive transactions would add a round trip to each."""
    if time.monotonic() - record.info.get(_USED_S, time.monotonic()) < _IDLE_S:
        return
    try:
        engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError from error


def _configure_sqlite(journal: sqlite_files.Journal, connection: Any, _record: Any) -> None:
    # None: sqlite3 emits no BEGIN of its own (its legacy mode delays it to the first write); _begin_sqlite does.
    connection.isolation_level = None
    cursor = connection.cursor()
    # First: switching to WAL takes a lock that another process may hold.
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    cursor.execute(f"PRAGMA journal_mode = {journal.mode}")
    cursor.execute(f"PRAGMA synchronous = {journal.synchronous}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("begin_immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


@contextmanager
def migration_config(url: str) -> Iterator[Config]:
    """Open Alembic's configuration with a connection in one transaction. This transaction lets only one process
    migrate the database at a time."""
    engine = make_engine(url, poolclass=NullPool)
    if engine.dialect.name == "sqlite":
        # Alembic changes a SQLite table by copying it, which must not cascade into the tables that refer to it.
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = OFF"))
    with engine.execution_options(begin_immediate=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        config = script_config()
        config.attributes["connection"] = connection
        yield config


def upgrade(url: str) -> None:
    """Upgrade the database to the newest schema revision. Nothing happens if it has that revision already, or a later
    one that this code can use.

    Raises:
        DatabaseNotMigrated: no upgrade leads from the database's revision to this code's.
    """
    with migration_config(url) as config:
        connection: Connection = config.attributes["connection"]
        reject_unknown_revision(connection, f"database_url ({without_secrets(connection.engine.url)})")
        if is_of_later_code(connection):
            return
        command.upgrade(config, "head")
