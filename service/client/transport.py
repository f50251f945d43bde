"""Requests to a service: its errors, retries within a patience, pages, and a key that may be rotated.

ServiceError
├── ServiceUnreachable   no answer
└── ServiceRejected       an answer of 400 or above, as problem+json
"""

import random
import time
from collections.abc import Generator, Mapping
from itertools import count
from typing import Any
from uuid import uuid4

import httpx

from shardtune.api_schemas.access.credentials import KeySource
from shardtune.api_schemas.formatting import field_line

_UNAUTHORIZED = 401
_LATER = (429, 503)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
_TIMEOUT_S = 30.0


class ServiceError(Exception):
    """The service did not do what it was asked for."""


class ServiceUnreachable(ServiceError):
    """Nothing answers at the address."""


class ServiceRejected(ServiceError):
    """An RFC 9457 problem: `status`, `code`, `detail`, and `errors` with field, value and message."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(problem.get("code") or "")
        self.detail = str(problem.get("detail") or problem.get("title") or f"HTTP {status}")
        errors = problem.get("errors")
        self.errors: list[dict[str, Any]] = (
            [e for e in errors if isinstance(e, dict)] if isinstance(errors, list) else []
        )
        super().__init__(self.detail)

    @property
    def is_input_error(self) -> bool:
        """True: the request is at fault, not the service."""
        return 400 <= self.status < 500

    def lines(self) -> list[str]:
        """The problem for a person: one line per field, or the detail."""
        lines = [field_line(error) for error in self.errors]
        return lines or [self.detail]


class _Bearer(httpx.Auth):
    """Sends the key; where it is rejected, sends the one that its file has by now."""

    def __init__(self, keys: KeySource) -> None:
        self._keys = keys

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """The request with the key, once more with another one."""
        if self._keys.key is not None:
            request.headers["authorization"] = f"Bearer {self._keys.key}"
        response = yield request
        if response.status_code == _UNAUTHORIZED and self._keys.reread():
            request.headers["authorization"] = f"Bearer {self._keys.key}"
            yield request


class Calls:
    """Requests to one service, each repeated while it says "later", for `patience_s` in all."""

    def __init__(
        self, base_url: str, keys: KeySource, transport: httpx.BaseTransport | None, patience_s: float
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.patience_s = patience_s
        # trust_env off: a proxy of the environment must not be asked for an address on this machine.
        self._http = httpx.Client(
            base_url=self.base_url, timeout=_TIMEOUT_S, transport=transport, trust_env=False, auth=_Bearer(keys)
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ready(self) -> bool:
        """True when the database is reachable and migrated."""
        try:
            return self._http.get("/readyz", timeout=5).is_success
        except httpx.TransportError:
            return False

    def send(self, method: str, path: str, body: object = None, params: Mapping[str, Any] | None = None) -> Any:
        """The JSON that is answered.

        Raises:
            ServiceUnreachable, ServiceRejected: after the patience, where waiting could have helped.
        """
        # Named, so that it can be sent again whatever became of it.
        headers = {"Idempotency-Key": str(uuid4())} if method == "POST" else {}
        request = self._http.build_request(method, path, json=body, params=params, headers=headers)
        left_s = self.patience_s
        for attempt in count():
            response = self._sent(request)
            if response.is_success:
                return response.json() if response.content else None
            pause_s = _pause_s(response, attempt)
            if response.status_code not in _LATER or pause_s > left_s:
                break
            left_s -= pause_s
            time.sleep(pause_s)
        try:
            problem = response.json()
        except ValueError:
            problem = {}
        raise ServiceRejected(response.status_code, problem if isinstance(problem, dict) else {})

    def pages(
        self, path: str, name: str, params: Mapping[str, Any] | None = None, at_most: int | None = None
    ) -> list[Any]:
        """The entries of every page of a list, or the first so many."""
        rows: list[Any] = []
        asked = dict(params or {}) | {"limit": min(500, at_most or 500)}
        while True:
            page = self.send("GET", path, params=asked)
            rows += page[name]
            if page["next_page_token"] is None or (at_most is not None and len(rows) >= at_most):
                return rows[:at_most]
            asked["page_token"] = page["next_page_token"]

    def _sent(self, request: httpx.Request) -> httpx.Response:
        try:
            try:
                return self._http.send(request)
            except httpx.RemoteProtocolError:
                # The connection may have been closed as the request was sent.
                return self._http.send(request)
        except httpx.TransportError as error:
            raise ServiceUnreachable(f"no answer from the service at {self.base_url}: {error}") from error


def _pause_s(response: httpx.Response, attempt: int) -> float:
    """What the service asks for, else more each time; spread, so that clients rejected together do not return together."""
    asked = response.headers.get("retry-after", "")
    if asked.isdecimal():
        return int(asked) * random.uniform(1.0, 1.25)
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**attempt) * random.uniform(0.5, 1.0)
