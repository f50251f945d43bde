"""Faults of single database statements, by a schedule: some fail, some hang, and the answers of some are lost.

Listeners on SQLAlchemy's engines and dialects reach every statement of a process, its migrations included. The n-th
statement of a process meets the same fault for the same seed.
"""

import random
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Engine, event
from sqlalchemy.engine.default import DefaultDialect

_HANG_S = 3.0


class Fault(StrEnum):
    """Fault of one statement or COMMIT."""

    LOST_CONNECTION = "connection lost before the statement"
    LOST_ANSWER = "answer of the statement lost"
    CANCELLED = "statement cancelled"
    HANGING = "statement hanging"
    COMMIT_FAILED = "COMMIT failed"
    COMMIT_UNANSWERED = "answer of COMMIT lost"


_OF_STATEMENTS = (Fault.LOST_CONNECTION, Fault.LOST_ANSWER, Fault.CANCELLED, Fault.HANGING)
_OF_COMMITS = (Fault.COMMIT_FAILED, Fault.COMMIT_UNANSWERED)


@dataclass(frozen=True)
class Schedule:
    """Faults of one process."""

    seed: int
    rate: float
    """Share of statements, and of COMMITs, that meet a fault."""
    record: Path
    """File that gets a line for each fault."""


class StatementFaults:
    """Faults that every engine of this process meets from `install` on."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._chooser = schedule, random.Random(schedule.seed)

    def install(self) -> None:
        """Put the faults between SQLAlchemy and the drivers, for the rest of this process."""
        event.listen(Engine, "do_execute", self._execute)
        commit: Callable[..., None] = DefaultDialect.do_commit
        faults = self

        def do_commit(dialect: DefaultDialect, connection: Any) -> None:
            faults._commit(dialect, connection, commit)

        DefaultDialect.do_commit = do_commit  # type: ignore[method-assign]

    def _next(self, among: tuple[Fault, ...]) -> Fault | None:
        # Two draws for each statement, whether or not one is used: the schedule does not depend on the kinds before.
        is_due, which = self._chooser.random() < self._schedule.rate, self._chooser.choice(among)
        if not is_due:
            return None
        with self._schedule.record.open("a") as record:
            record.write(f"{which}\n")
        return which

    def _execute(self, cursor: Any, statement: str, parameters: Any, _context: Any) -> bool:
        """Whether the statement was executed here, so that SQLAlchemy does not."""
        match self._next(_OF_STATEMENTS):
            case Fault.LOST_CONNECTION:
                _lose(cursor.connection)
            case Fault.LOST_ANSWER:
                cursor.execute(statement, parameters)
                _lose(cursor.connection)
            case Fault.CANCELLED:
                _cancel(cursor.connection)
            case Fault.HANGING:
                time.sleep(_HANG_S)
        return False

    def _commit(self, dialect: DefaultDialect, connection: Any, commit: Callable[..., None]) -> None:
        match self._next(_OF_COMMITS):
            case Fault.COMMIT_FAILED:
                _lose(connection.dbapi_connection)
            case Fault.COMMIT_UNANSWERED:
                commit(dialect, connection)
                _lose(connection.dbapi_connection)
            case _:
                commit(dialect, connection)


def _lose(connection: Any) -> None:
    """Raise what the driver raises for a lost server; SQLite, which has none, fails to read or write its file."""
    if isinstance(connection, sqlite3.Connection):
        raise sqlite3.OperationalError("disk I/O error")
    connection.close()
    raise psycopg.OperationalError("server closed the connection unexpectedly")


def _cancel(connection: Any) -> None:
    """Raise what the driver raises for a statement that took too long, or found its rows or file locked."""
    if isinstance(connection, sqlite3.Connection):
        raise sqlite3.OperationalError("database is locked")
    # The server would have ended the transaction: so does the next statement.
    raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
