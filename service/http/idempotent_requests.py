"""Idempotent POST requests: with an `Idempotency-Key`, the response is stored in the transaction of the change.

A stored response is looked up before the route runs, since the route's checks (is a worker there, is the study open)
apply to the first request only. A rejected request stores nothing, and may be sent again.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Annotated, TypeVar

from fastapi import Depends, FastAPI, Header, Request, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from shardtune.db.queries import idempotency
from shardtune.db.tables.access import IdempotentRow
from shardtune.service.http import etags
from shardtune.service.http.errors import Invalid, invalid
from shardtune.service.process.context import Context, ContextDep

KEY_LIFETIME = timedelta(days=1)
"""Time after which an Idempotency-Key is forgotten and may be used for another request."""

_STUDIES = "/v1/studies"
_ID_FIELDS = {_STUDIES: "study_id", "/v1/schedules": "schedule_id"}
"""Field that contains the id of a created resource, by the path under which the resource is created and read."""

_EVERY_PROJECT = "*"
"""Name under which responses are stored for senders that see every project; no project can have this name."""

Answer = TypeVar("Answer", bound=BaseModel)


class Replayed(Exception):
    """Exception raised if the same request was executed before; it carries the stored response, which is then sent
    again.
    """

    def __init__(self, status: int, answer: str) -> None:
        super().__init__(status)
        self.status, self.answer = status, answer


@dataclass(frozen=True)
class IdempotencyKey:
    """Identity of a POST request. Requests with the same Idempotency-Key take effect only once; a request without a
    key takes effect every time.
    """

    scope: str = ""
    key: str | None = None
    request_sha256: str = ""

    @contextmanager
    def write(self, context: Context) -> Iterator[Session]:
        """Open the database transaction in which a POST request makes its change; call `answer` inside the `with`
        block.

        Raises:
            Replayed: the change was made before.
            Invalid: the key was used for another request.
        """
        with context.db.write() as session:
            # The key is claimed by the transaction's first statement: of two simultaneous requests the second waits
            # here for the first, and then finds its response.
            if self.key is not None:
                self._claim(session, context.now())
            yield session
            # A change that stored no response could never be repeated safely.
            assert self.key is None or idempotency.is_answered(session, self.scope, self.key), "answer() was not called"

    def answer(self, session: Session, value: Answer, status: int = 200, stored: Answer | None = None) -> Answer:
        """Store the response of a POST request and return it. If the response contains a secret, `stored` is stored
        in its place, and repetitions of the request get that.
        """
        if self.key is not None:
            text = (stored or value).model_dump_json()
            idempotency.store(session, self.scope, self.key, status, text)
        return value

    def replay(self, context: Context) -> None:
        """Look for an earlier response to the same POST request, without taking a lock. If there is one, raise
        `Replayed` with it.

        Raises:
            Replayed: contains the stored response.
            Invalid: the key was used for another request.
        """
        if self.key is None:
            return
        with context.db.read() as session:
            stored_request = idempotency.find(session, self.scope, self.key)
            if stored_request is not None and stored_request.created_at >= context.now() - KEY_LIFETIME:
                self._raise_stored(stored_request)

    def _claim(self, session: Session, now: datetime) -> None:
        assert self.key is not None
        idempotency.forget(session, now - KEY_LIFETIME, self.scope, self.key)
        if not idempotency.claim(session, self.scope, self.key, self.request_sha256, now):
            self._raise_stored(idempotency.get(session, self.scope, self.key))

    def _raise_stored(self, stored_request: IdempotentRow) -> None:
        if stored_request.request_sha256 != self.request_sha256:
            raise Invalid(
                "idempotency_key_reused",
                f"Idempotency-Key ({self.key}) was used for another request; send each new request under a key of its own",
            )
        assert stored_request.status is not None and stored_request.answer is not None
        raise Replayed(stored_request.status, stored_request.answer)


NO_KEY = IdempotencyKey()
"""Identity of every POST request without an Idempotency-Key."""


async def _read_key(
    request: Request,
    context: ContextDep,
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="A name for this request, such as a UUID: sent again under it within a day, it changes nothing "
            "and gets the same answer.",
        ),
    ] = None,
) -> IdempotencyKey:
    if key is None:
        return NO_KEY
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        message = "must be 1 to 255 printable ASCII characters; use a UUID"
        raise invalid("Idempotency-Key", key, message, code="invalid_idempotency_key")
    # The hash covers method, path, query and body, so that a key that is reused by mistake is noticed.
    parts = (request.method, request.url.path, request.url.query, _canonical_body(await request.body()))
    idempotency = IdempotencyKey(
        context.principal.project_id or _EVERY_PROJECT, key, hashlib.sha256("\0".join(parts).encode()).hexdigest()
    )
    await run_in_threadpool(idempotency.replay, context)
    return idempotency


IdempotencyDep = Annotated[IdempotencyKey, Depends(_read_key)]


def _canonical_body(body: bytes) -> str:
    """Request body as text with its JSON keys in a fixed order, so that two bodies that differ only in the order of
    keys are equal.
    """
    try:
        return json.dumps(json.loads(body), sort_keys=True)
    except (ValueError, RecursionError):
        return body.hex()


def install(app: FastAPI) -> None:
    """Register the handler that answers a repeated POST request with its stored response."""
    app.add_exception_handler(Replayed, _replay_response)


def _replay_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, Replayed)
    headers = {"Idempotency-Replayed": "true"} | _creation_headers(request.url.path, error.status, error.answer)
    return Response(error.answer, error.status, headers, media_type="application/json")


def _creation_headers(path: str, status: int, answer: str) -> dict[str, str]:
    """Headers `Location` and `ETag` of the first response, if that request created a study or schedule. They follow
    from the stored content, since the first response was made from the same.
    """
    content = json.loads(answer)
    if status == HTTPStatus.CREATED:
        # By the path, not by the content's fields: a webhook names a study, too, and its creation has no such headers.
        collection = next((start for start in _ID_FIELDS if path.startswith(start)), None)
        if collection is not None:
            address = f"{collection}/{content[_ID_FIELDS[collection]]}"
            return {"Location": address, "ETag": etags.tag_of_json(answer)}
    # The answer of `POST /v1/best:resolve` is not the study itself, and has no entity tag.
    started = content.get("study") if status == HTTPStatus.ACCEPTED else None
    return {"Location": f"{_STUDIES}/{started['study_id']}"} if started else {}
