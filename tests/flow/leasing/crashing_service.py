"""The service in a process of its own, which is killed before or after a chosen commit.

Requests and the loops' steps are sent through a pipe: requests go through the whole application, the steps are taken when
they are asked for. A process that dies leaves what SIGKILL leaves.
"""

import functools
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from fastapi import FastAPI
from sqlalchemy import event
from sqlalchemy.orm import Session

from shardtune.db.clock import utc_now
from shardtune.db.session import Database
from shardtune.service.app import create_app
from shardtune.service.leasing import reclaim
from shardtune.service.lifecycle import advance
from shardtune.service.process.context import Context
from shardtune.service.retuning import challenge_steps, driver, queue
from shardtune.service.settings import Settings
from tests.support.service import response_checks, webhook_deliveries
from tests.support.service.local_client import local_client

_FORK = multiprocessing.get_context("fork")


class Died(Exception):
    """No answer: the process was killed on the way."""


@dataclass(frozen=True)
class Death:
    """Moment at which the process dies: before or after so many commits of one request."""

    commit: int
    side: Literal["before", "after"]


class MortalService:
    """Answers one request after another; the next one after its death is answered by a new process."""

    def __init__(self, url: str, **settings: Any) -> None:
        self._settings = Settings(database_url=url, **settings)
        self._app = _application()
        self.later_s = 0.0
        """Offset of the service's clock."""
        self._process: Any = None
        self.commits = 0
        """Response time of the last answered request."""

    def ask(self, rule: str, *arguments: Any, death: Death | None = None) -> Any:
        """Have a rule applied.

        Raises:
            Died: the process was killed as `death` says; whether anything was changed, its caller cannot know.
        """
        if self._process is None:
            ours, theirs = _FORK.Pipe()
            self._process = _FORK.Process(target=_serve, args=(theirs, self._settings, self._app), daemon=True)
            self._process.start()
            theirs.close()
            self._pipe = ours
        self._pipe.send((rule, arguments, self.later_s, death))
        try:
            answer, self.commits = self._pipe.recv()
        except EOFError:
            self.close()
            raise Died from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End the process, if it is not dead already."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


@functools.cache
def _application() -> FastAPI:
    """Made before the fork, with all that a first request works out: once for all lives."""
    app = create_app(Settings(database_url="sqlite:///not-opened.sqlite3"), migrate=False)
    local_client(app).get("/healthz").raise_for_status()
    response_checks.prepare()
    return app


def _serve(pipe: Any, settings: Settings, app: FastAPI) -> None:
    counted, clock = _Commits(), _Clock()
    context = Context(Database(settings.database_url), settings, clock)
    app.state.context = context
    # Without its lifespan: what the loops do is done when it is asked for.
    client = local_client(app)
    event.listen(context.db.engine, "commit", lambda _connection: counted.happens("before"))
    event.listen(Session, "after_commit", lambda _session: counted.happens("after"))
    advance.catch_up(context)
    while True:
        rule, arguments, clock.later_s, counted.death = pipe.recv()
        counted.number = 0
        try:
            if rule == "http":
                answer = client.request(*arguments[:2], **arguments[2])
                answer = (answer.status_code, answer.json() if answer.content else None)
            else:
                answer = _STEPS[rule](context)
        except Exception:  # noqa: BLE001 (its caller's to judge)
            answer = RuntimeError(traceback.format_exc())
        pipe.send((answer, counted.number))


class _Commits:
    def __init__(self) -> None:
        self.number, self.death = 0, None

    def happens(self, side: str) -> None:
        self.number += side == "before"
        if self.death == Death(self.number, side):
            os.kill(os.getpid(), signal.SIGKILL)


class _Clock:
    def __init__(self) -> None:
        self.later_s = 0.0

    def __call__(self) -> datetime:
        return utc_now() + timedelta(seconds=self.later_s)


_STEPS: dict[str, Callable[[Context], object]] = {
    "sweep": reclaim.sweep,
    "start retunes": lambda context: queue.start_due(context, challenge_steps.start_challenge),
    "drive retunes": lambda context: driver.drive(
        context, challenge_steps.start_challenge, challenge_steps.advance_retune
    ),
    "deliver": webhook_deliveries.deliver,
}
