"""Repeating a POST is safe: with an `Idempotency-Key` its answer is stored in the transaction of its change.

A stored answer is looked for before the route runs: what the route checks (is a worker there, is the study open) holds
for the first request only. The key is claimed by the first statement of the change's transaction: of two requests at
once, the second waits for the first and then finds its answer. A rejected request stores nothing, and may be sent again.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, TypeVar

from fastapi import Depends, FastAPI, Header, Request, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from shardtune.db.queries import idempotency
from shardtune.db.tables.access import IdempotentRow
from shardtune.service.http.errors import Invalid, invalid
from shardtune.service.process.context import Context, InContext

KEPT = timedelta(days=1)
"""A key may be used for something else after this."""

_EVERY = "*"
"""Scope of those who see every project; no project has this name."""

A = TypeVar("A", bound=BaseModel)


class Replayed(Exception):
    """The change was made before; this is what was answered."""

    def __init__(self, status: int, answer: str) -> None:
        super().__init__(status)
        self.status, self.answer = status, answer


@dataclass(frozen=True)
class Once:
    """One POST, and the name under which it happens once; without a name it happens as often as it is sent."""

    scope: str = ""
    key: str | None = None
    request_sha256: str = ""

    @contextmanager
    def write(self, context: Context) -> Iterator[Session]:
        """The transaction of the change; inside, call `answer`.

        Raises:
            Replayed: it was made before.
            Invalid: the key was used for another request.
        """
        with context.db.write() as session:
            if self.key is not None:
                self._claim(session, context.now())
            yield session
            assert self.key is None or idempotency.is_answered(session, self.scope, self.key), "answer() was not called"

    def answer(self, session: Session, value: A, status: int = 200, stored: A | None = None) -> A:
        """Store the answer and return it; `stored` is what a repetition gets instead, where the answer holds a secret."""
        if self.key is not None:
            text = (stored or value).model_dump_json()
            idempotency.store(session, self.scope, self.key, status, text)
        return value

    def replay(self, context: Context) -> None:
        """Answer as before, if this request was answered before; takes no lock.

        Raises:
            Replayed: it was.
            Invalid: the key was used for another request.
        """
        if self.key is None:
            return
        with context.db.read() as session:
            known = idempotency.find(session, self.scope, self.key)
            if known is not None and known.created_at >= context.now() - KEPT:
                self._answer_as(known)

    def _claim(self, session: Session, now: datetime) -> None:
        assert self.key is not None
        idempotency.forget(session, now - KEPT, self.scope, self.key)
        if not idempotency.claim(session, self.scope, self.key, self.request_sha256, now):
            self._answer_as(idempotency.get(session, self.scope, self.key))

    def _answer_as(self, known: IdempotentRow) -> None:
        if known.request_sha256 != self.request_sha256:
            raise Invalid(
                "idempotency_key_reused",
                f"Idempotency-Key ({self.key}) was used for another request; send each new request under a key of its own",
            )
        assert known.status is not None and known.answer is not None
        raise Replayed(known.status, known.answer)


ALWAYS = Once()
"""For changes nobody repeats by name."""


async def _once(
    request: Request,
    context: InContext,
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="A name for this request, such as a UUID: sent again under it within a day, it changes nothing "
            "and gets the same answer.",
        ),
    ] = None,
) -> Once:
    if key is None:
        return ALWAYS
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        message = "must be 1 to 255 printable ASCII characters; use a UUID"
        raise invalid("Idempotency-Key", key, message, code="invalid_idempotency_key")
    parts = (request.method, request.url.path, request.url.query, _canonical(await request.body()))
    once = Once(context.principal.project_id or _EVERY, key, hashlib.sha256("\0".join(parts).encode()).hexdigest())
    await run_in_threadpool(once.replay, context)
    return once


InOnce = Annotated[Once, Depends(_once)]


def _canonical(body: bytes) -> str:
    """The body as text; JSON in one spelling, so that the order of keys makes no difference."""
    try:
        return json.dumps(json.loads(body), sort_keys=True)
    except (ValueError, RecursionError):
        return body.hex()


def install(app: FastAPI) -> None:
    """Answer repeated requests."""
    app.add_exception_handler(Replayed, _replay)


def _replay(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Replayed)
    headers = {"Idempotency-Replayed": "true"}
    return Response(error.answer, error.status, headers, media_type="application/json")
