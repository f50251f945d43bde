"""Limits of waiting between this process and its database, so that neither waits for ever.

A host that is lost in mid-transaction holds rows until the server ends its session (`idle_s`); who waits for these rows
gives up sooner (`lock_s`), and says so. Where server or network fall silent, the process gives its connection up.
"""

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.errors import DeadlockDetected, LockNotAvailable, QueryCanceled, SerializationFailure
from psycopg.pq import TransactionStatus
from sqlalchemy import URL, Engine, event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

_MS = 1000
_LEAST_S = 1.0
_LEAST_CONNECT_S = 2
"""Least connect timeout in seconds; libpq raises smaller values to two."""
_PROBES = 3
_BUSY = (LockNotAvailable, QueryCanceled, DeadlockDetected, SerializationFailure)


@dataclass(frozen=True)
class DatabaseLimits:
    """Limits of one process towards Postgres; a SQLite file has none of these."""

    connections: int = 15
    """Most open connections."""
    lock_s: float = 4.0
    """Seconds of waiting for a row, or for a free connection. Shorter than a worker waits for an answer (5 s)."""
    statement_s: float = 10.0
    """Seconds of one statement, waiting for rows included."""
    idle_s: float = 10.0
    """Seconds between two statements of a transaction, after which the server ends it: the longest that a lost host
    can hold a row."""
    silence_s: float = 12.0
    """Seconds without an answer, after which the connection is given up. Longer than a statement may take."""

    @classmethod
    def for_lease(cls, lease_s: float, connections: int = 15) -> "DatabaseLimits":
        """Choose limits that leave time to try again, and another replica, before a lease of this length ends."""
        return cls(
            connections,
            lock_s=max(_LEAST_S, lease_s / 5),
            statement_s=max(2 * _LEAST_S, lease_s / 2),
            idle_s=max(2 * _LEAST_S, lease_s / 2),
            silence_s=max(3 * _LEAST_S, lease_s * 0.6),
        )

    def pool(self) -> dict[str, Any]:
        """Return options of the engine's pool."""
        # The one used last first: each connection prepares and plans its own statements, and few are enough for most work.
        used = {"pool_use_lifo": True}
        return {"pool_size": self.connections, "max_overflow": 0, "pool_timeout": self.lock_s} | used

    def connect_args(self, url: URL) -> dict[str, Any]:
        """Return libpq's parameters, except those that the URL names itself."""
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
        """Have the engine's connections give up a silent server."""

        def connect(_dialect: Any, _record: Any, args: Any, options: Any) -> _BoundedConnection:
            opened = _BoundedConnection.connect(*args, **options)
            opened.silence_s = self.silence_s
            opened.cursor_factory = _PlainCursor
            return opened

        event.listen(engine, "do_connect", connect)


class _BoundedConnection(psycopg.Connection[Any]):
    """Connection that gives up a silent server. A server that hangs sends no error, and its kernel still
    acknowledges: only a clock of ours ends the wait."""

    silence_s: float | None = None

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Wait for the answer; close a connection that is still waiting after the limit, so that nobody reuses it."""
        try:
            return super().wait(gen, interval, self.silence_s if timeout is None else timeout)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()
            raise


class _PlainCursor(psycopg.Cursor[Any]):
    """Cursor that describes columns by name and type only. SQLAlchemy asks for a description after each statement,
    mostly to learn whether there is one; psycopg's own looks up how each column's type is written, a twentieth of
    the cost of a request."""

    @property
    def description(self) -> Any:
        """Columns as in PEP 249, without sizes; None where the statement returns no rows."""
        result = self.pgresult
        if result is None or not result.nfields:
            return None
        unknown = (None,) * 5
        names = (result.fname(index) or b"" for index in range(result.nfields))
        return [(name.decode(), result.ftype(index), *unknown) for index, name in enumerate(names)]


def is_outage(error: Exception) -> bool:
    """Whether the database is away or too busy, so that the same request may succeed later."""
    if isinstance(error, DBAPIError):
        return isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated
    return isinstance(error, PoolTimeout)


def is_busy(error: Exception) -> bool:
    """Whether an outage is only a delay: the database answers, but a row, a connection or a statement's end took too
    long."""
    if isinstance(error, PoolTimeout):
        return True
    if not isinstance(error, OperationalError) or error.connection_invalidated:
        return False
    # SQLite has an error code for it, too, but its driver's class is the same for all.
    return isinstance(error.orig, _BUSY) or "database is locked" in str(error.orig)
