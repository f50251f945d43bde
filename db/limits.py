"""Timeouts between this process and its database. A host lost in mid-transaction holds rows until the server ends its
session (`idle_s`); transactions that need these rows fail sooner (`lock_s`). If server or network stop responding, the
process closes its connection."""

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.errors import DeadlockDetected, LockNotAvailable, QueryCanceled, SerializationFailure
from psycopg.pq import TransactionStatus
from sqlalchemy import URL, Engine, event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shardtune.api_schemas.protocol import REQUEST_TIMEOUT_S

_MS = 1000
_LEAST_S = 1.0
MOST_LOCK_S = 0.8 * REQUEST_TIMEOUT_S
"""Maximum seconds of waiting for a lock, however long the lease is. A worker that waits for the response must be told
to try again before it gives up; else its request would take effect although the worker no longer waits."""
_LEAST_CONNECT_S = 2
"""Minimum connect timeout in seconds, because libpq raises smaller values to two seconds."""
_PROBES = 3
_BUSY = (LockNotAvailable, QueryCanceled, DeadlockDetected, SerializationFailure)


@dataclass(frozen=True)
class DatabaseLimits:
    """Timeouts and connection limit of one process on Postgres; none of them applies to a SQLite file."""

    connections: int = 15
    """Maximum number of open connections."""
    lock_s: float = MOST_LOCK_S
    """Maximum seconds of waiting for a row lock, or for a free connection of the pool; at most `MOST_LOCK_S`."""
    statement_s: float = 10.0
    """Maximum seconds of one statement, including waits for row locks."""
    idle_s: float = 10.0
    """Maximum seconds between two statements of a transaction. After that, the server ends the transaction, so that a
    host that has disappeared cannot hold a row locked for longer."""
    silence_s: float = 12.0
    """Seconds without a response from the server after which the connection is closed. They must exceed the limit for
    one statement."""

    @classmethod
    def for_lease(cls, lease_s: float, connections: int = 15) -> "DatabaseLimits":
        """Return limits for a lease of this length: before the lease ends, there is enough time to try a request
        again, also at another replica."""
        return cls(
            connections,
            lock_s=min(MOST_LOCK_S, max(_LEAST_S, lease_s / 5)),
            statement_s=max(2 * _LEAST_S, lease_s / 2),
            idle_s=max(2 * _LEAST_S, lease_s / 2),
            silence_s=max(3 * _LEAST_S, lease_s * 0.6),
        )

    def pool(self) -> dict[str, Any]:
        """Return the options of the engine's connection pool."""
        # The one used last first: each connection prepares and plans its own statements, and few are enough for most work.
        used = {"pool_use_lifo": True}
        return {"pool_size": self.connections, "max_overflow": 0, "pool_timeout": self.lock_s} | used

    def connect_args(self, url: URL) -> dict[str, Any]:
        """Return libpq's connection parameters, except those that the database's URL sets already."""
        quiet_s = max(1, round(self.idle_s / 2))
        probe_s = max(1, round(self.idle_s / (2 * _PROBES)))
        unacknowledged_ms = round(self.idle_s * _MS)
        session = {
            "lock_timeout": round(self.lock_s * _MS),
            "statement_timeout": round(self.statement_s * _MS),
            "idle_in_transaction_session_timeout": round(self.idle_s * _MS),
            # The server's side of the same connection, which would keep a lost client's session for hours.
            "tcp_keepalives_idle": quiet_s,
            "tcp_keepalives_interval": probe_s,
            "tcp_keepalives_count": _PROBES,
            "tcp_user_timeout": unacknowledged_ms,
        }
        ours = {
            "fallback_application_name": "shardtune",
            "connect_timeout": max(_LEAST_CONNECT_S, round(self.lock_s)),
            "keepalives_idle": quiet_s,
            "keepalives_interval": probe_s,
            "keepalives_count": _PROBES,
            "tcp_user_timeout": unacknowledged_ms,
            "options": " ".join(f"-c {name}={value}" for name, value in session.items()),
        }
        # The server takes the last of several values: what the URL's own options say stands.
        theirs = url.query.get("options")
        return {name: value for name, value in ours.items() if name not in url.query} | (
            {"options": f"{ours['options']} {theirs}"} if theirs else {}
        )

    def give_up_silent_servers(self, engine: Engine) -> None:
        """Make the engine's connections close when the server stops responding."""

        def connect(_dialect: Any, _record: Any, args: Any, options: Any) -> _BoundedConnection:
            opened = _BoundedConnection.connect(*args, **options)
            opened.silence_s = self.silence_s
            opened.cursor_factory = _PlainCursor
            return opened

        event.listen(engine, "do_connect", connect)


class _BoundedConnection(psycopg.Connection[Any]):
    """Connection that closes itself when the server stops responding. A hanging server sends no error and its kernel
    still acknowledges packets, so only a timeout in this process ends the wait."""

    silence_s: float | None = None

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Wait for the server's response; on a timeout, close the connection, so that it is not reused."""
        try:
            return super().wait(gen, interval, self.silence_s if timeout is None else timeout)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()
            raise


class _PlainCursor(psycopg.Cursor[Any]):
    """Cursor whose description has only column names and types. SQLAlchemy reads a description after each statement,
    mostly to check whether there is one. psycopg's own description also looks up type names, which takes a twentieth
    of a request.
    """

    @property
    def description(self) -> Any:
        """Columns of the result as in PEP 249, without sizes; None if the statement returns no rows."""
        result = self.pgresult
        if result is None or not result.nfields:
            return None
        unknown = (None,) * 5
        names = (result.fname(index) or b"" for index in range(result.nfields))
        return [(name.decode(), result.ftype(index), *unknown) for index, name in enumerate(names)]


def is_outage(error: Exception) -> bool:
    """Whether a database error is an outage or overload, so that the same request may succeed later."""
    if isinstance(error, DBAPIError):
        return isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated
    return isinstance(error, PoolTimeout)


def is_busy(error: Exception) -> bool:
    """Whether an outage is only a delay: the database responds, but a row lock, a free connection or the end of a
    statement had to be waited for too long."""
    if isinstance(error, PoolTimeout):
        return True
    if not isinstance(error, OperationalError) or error.connection_invalidated:
        return False
    # SQLite has an error code for it, too, but its driver's class is the same for all.
    return isinstance(error.orig, _BUSY) or "database is locked" in str(error.orig)
