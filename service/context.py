"""What every rule of the service needs: the database, the settings, the time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Request

from db.session import Database
from service.askers import Askers
from service.settings import Settings


def utc_now() -> datetime:
    """The present moment."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Context:
    """One service process."""

    db: Database
    settings: Settings
    now: Callable[[], datetime] = utc_now
    """Tests turn this clock."""
    askers: Askers = field(default_factory=Askers)


def _of_request(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


InContext = Annotated[Context, Depends(_of_request)]
