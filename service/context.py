"""What every rule of the service needs: the database, the settings, the time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Request

from db.session import Database
from service.askers import Askers
from service.board import Board
from service.feed import Feed, Seats
from service.settings import Settings


def utc_now() -> datetime:
    """The present moment."""
    return datetime.now(UTC)


class Stopping:
    """A flag, once set for good."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """The process is to end."""
        self._is_set = True

    def __bool__(self) -> bool:
        return self._is_set


@dataclass(frozen=True)
class Context:
    """One service process."""

    db: Database
    settings: Settings
    now: Callable[[], datetime] = utc_now
    """Tests turn this clock."""
    askers: Askers = field(default_factory=Askers)
    board: Board = field(default_factory=Board)
    feed: Feed = field(default_factory=Feed)
    seats: Seats = field(default_factory=Seats)
    stopping: Stopping = field(default_factory=Stopping)
    """Set by the signal to end: whatever waits is answered now."""


def _of_request(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


InContext = Annotated[Context, Depends(_of_request)]
