"""The service's rules in a process of their own, which is killed before or after a chosen commit.

No HTTP: requests are the rules' own arguments, sent through a pipe. A process that dies leaves what SIGKILL leaves.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import event
from sqlalchemy.orm import Session

from shardtune.api_schemas.leases import Heartbeat, LeaseRequest, Registration, Report
from shardtune.api_schemas.studies import StudySpec
from shardtune.db.session import Database
from shardtune.service.http.errors import ApiError
from shardtune.service.leasing import renew_and_report
from shardtune.service.lifecycle import advance, expiry
from shardtune.service.process.context import Context, utc_now
from shardtune.service.settings import Settings
from shardtune.service.studies import create_and_read
from shardtune.service.workers import registry
from tests.support.waitless_lease import grant

_FORK = multiprocessing.get_context("fork")


class Refused(Exception):
    """The rule refused; its text is the error's code."""


class Died(Exception):
    """No answer: the process was killed on the way."""


@dataclass(frozen=True)
class Death:
    """When the process dies: before or after so many commits of one request."""

    commit: int
    side: Literal["before", "after"]


class MortalService:
    """Answers one request after another; the next one after its death is answered by a new process."""

    def __init__(self, url: str, **settings: Any) -> None:
        self._settings = Settings(database_url=url, **settings)
        self.later_s = 0.0
        """How far the service's clock is ahead."""
        self._process: Any = None
        self.commits = 0
        """Of the last answered request."""

    def ask(self, rule: str, *arguments: Any, death: Death | None = None) -> Any:
        """Have a rule applied.

        Raises:
            Refused: the rule says no.
        Died: the process was killed as `death` says; whether anything was changed, its caller cannot know.
        """
        if self._process is None:
            ours, theirs = _FORK.Pipe()
            self._process = _FORK.Process(target=_serve, args=(theirs, self._settings), daemon=True)
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


def _serve(pipe: Any, settings: Settings) -> None:
    counted, clock = _Commits(), _Clock()
    context = Context(Database(settings.database_url), settings, clock)
    event.listen(context.db.engine, "commit", lambda _connection: counted.happens("before"))
    event.listen(Session, "after_commit", lambda _session: counted.happens("after"))
    advance.catch_up(context)
    while True:
        rule, arguments, clock.later_s, counted.death = pipe.recv()
        counted.number = 0
        try:
            answer = _RULES[rule](context, *arguments)
        except ApiError as error:
            answer = Refused(error.code)
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


_RULES: dict[str, Callable[..., Any]] = {
    "register": lambda context, body: registry.register(context, Registration.model_validate(body)),
    "create": lambda context, body, study_id: create_and_read.create(
        context, StudySpec.model_validate(body), study_id=study_id
    ),
    "lease": lambda context, body: grant(context, LeaseRequest.model_validate(body)),
    "heartbeat": lambda context, run_id, body: renew_and_report.renew(context, run_id, Heartbeat.model_validate(body)),
    "report": lambda context, run_id, body: renew_and_report.finish(context, run_id, Report.model_validate(body)),
    "sweep": expiry.sweep,
}
