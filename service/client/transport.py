"""Send requests to a service: errors, retries within a patience, paging, and rotated API keys.

ServiceError
├── ServiceUnreachable   no answer
├── NoService            an answer of something that is no Shardtune service
└── ServiceRejected       an answer of 400 or above, as problem+json
"""

import random
import time
from collections.abc import Generator, Mapping
from itertools import count
from typing import Any, TypeVar
from uuid import uuid4

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from shardtune.api_schemas.access.credentials import KeySource
from shardtune.api_schemas.formatting import field_line
from shardtune.api_schemas.printable_text import printable

_Model = TypeVar("_Model", bound=BaseModel)
_Rows = TypeVar("_Rows")
_UNAUTHORIZED = 401
LATER = (429, 503)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
_SHORTEST_PAUSE_S = 0.1
"""Pause before a request is repeated where the response asks for none (`Retry-After: 0`), so that patience has an end."""
_TIMEOUT_S = 30.0


class ServiceError(Exception):
    """Base class of the client's errors, all of which mean that a request to the service failed."""


class ServiceUnreachable(ServiceError):
    """Error that no service answers at the client's address."""


class NoService(ServiceError):
    """Error that the program which answers at the client's address is no Shardtune service, or one of another
    version."""


class ServiceRejected(ServiceError):
    """Error that the service answered with an RFC 9457 problem. It has the fields `status`, `code`, `detail` and
    `errors`, a list of field, value and message."""

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
        """Whether the client's request caused the error (status 4xx); otherwise the service did."""
        return 400 <= self.status < 500

    def lines(self) -> list[str]:
        """Format the service's error response for a person: one line for each wrong field or, if it names none, the
        detail text."""
        lines = [field_line(error) for error in self.errors]
        return lines or [self.detail]


class _Bearer(httpx.Auth):
    """Authentication that sends the API key. If the service rejects the key (401), the key is read from its file again
    and, if it has changed, sent."""

    def __init__(self, keys: KeySource) -> None:
        self._keys = keys

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Send a request with the API key. If the key is rejected and its file has changed, send the request once
        more."""
        if self._keys.key is not None:
            request.headers["authorization"] = f"Bearer {self._keys.key}"
        response = yield request
        if response.status_code == _UNAUTHORIZED and self._keys.reread():
            request.headers["authorization"] = f"Bearer {self._keys.key}"
            yield request


class Calls:
    """Sender of requests to one service. A request that the service answers by 429 or 503 is repeated for up to
    `patience_s` seconds in total."""

    def __init__(
        self,
        base_url: str,
        keys: KeySource,
        transport: httpx.BaseTransport | None,
        patience_s: float,
        timeout: httpx.Timeout | float = _TIMEOUT_S,
    ) -> None:
        self.base_url = _address(base_url)
        self.patience_s = patience_s
        # trust_env off: a proxy of the environment must not be asked for an address on this machine.
        self._http = httpx.Client(
            base_url=self.base_url, timeout=timeout, transport=transport, trust_env=False, auth=_Bearer(keys)
        )

    def close(self) -> None:
        """Close the client's connections to the service."""
        self._http.close()

    def ready(self) -> bool:
        """Whether the service answers and its database is reachable and migrated."""
        try:
            return self._http.get("/readyz", timeout=5).is_success
        except httpx.RequestError:
            return False

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        params: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        patience_s: float | None = None,
    ) -> Any:
        """Send a request and return the JSON of the response; None for an empty response.

        A POST without `idempotency_key` gets a new random key. `patience_s`: maximum seconds for which a busy service
        is asked again, if lower than the client's maximum.

        Raises:
            ServiceUnreachable: the service does not answer.
            ServiceRejected: the service rejects the request; for 429 and 503, only once the waiting time is used up.
            NoService: the response is not JSON.
        """
        # The service replays its answer to a repeated key: a POST whose answer was lost can be sent again safely.
        headers = {"Idempotency-Key": idempotency_key or str(uuid4())} if method == "POST" else {}
        try:
            request = self._http.build_request(method, path, json=body, params=params, headers=headers)
        except httpx.InvalidURL as error:
            if not path.isprintable():
                reason = "the address has a control character, as no id has; remove it"
                raise ServiceError(f"{method} {printable(path)}: {reason}") from error
            text = "name the model by its preset or Hugging Face id, and send lengths of samples as [tokens, samples] pairs"
            raise ServiceError(
                f"{method} {path}: the parameters are too long for an address ({error}); {text}"
            ) from error
        remaining_s = self.patience_s if patience_s is None else min(patience_s, self.patience_s)
        for attempt in count():
            response = self._sent(request)
            if response.is_success:
                return self._json(response) if response.content else None
            pause_s = _pause_s(response, attempt)
            if response.status_code not in LATER or pause_s > remaining_s:
                break
            remaining_s -= pause_s
            time.sleep(pause_s)
        try:
            problem = response.json()
        except ValueError:
            problem = {}
        raise ServiceRejected(response.status_code, problem if isinstance(problem, dict) else {})

    def pages(
        self, path: str, name: str, params: Mapping[str, Any] | None = None, at_most: int | None = None
    ) -> list[Any]:
        """Return the entries of all pages of a list, or only the first `at_most` entries."""
        rows: list[Any] = []
        query = dict(params or {}) | {"limit": min(500, at_most or 500)}
        while True:
            page = self.send("GET", path, params=query)
            if not isinstance(page, dict) or not isinstance(page.get(name), list) or "next_page_token" not in page:
                raise self._no_service()
            rows += page[name]
            if page["next_page_token"] is None or (at_most is not None and len(rows) >= at_most):
                return rows[:at_most]
            query["page_token"] = page["next_page_token"]

    def read(self, kind: type[_Model], answer: object) -> _Model:
        """Convert the JSON of a response to a schema.

        Raises:
            NoService: the JSON does not fit the schema.
        """
        try:
            return kind.model_validate(answer)
        except ValidationError:
            raise self._no_service() from None

    def read_rows(self, kind: TypeAdapter[_Rows], answer: object) -> _Rows:
        """Convert the entries of a list response to schemas.

        Raises:
            NoService: an entry does not fit the schema.
        """
        try:
            return kind.validate_python(answer)
        except ValidationError:
            raise self._no_service() from None

    def _json(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError:
            raise self._no_service() from None

    def _no_service(self) -> NoService:
        return NoService(f"what answered at {self.base_url} is no Shardtune service, or one of another version")

    def _sent(self, request: httpx.Request) -> httpx.Response:
        try:
            try:
                return self._http.send(request)
            except httpx.RemoteProtocolError:
                # A kept-alive connection may be closed by the service just as the request is sent.
                return self._http.send(request)
        # No transport error: an answer that a proxy has compressed wrongly (DecodingError).
        except httpx.RequestError as error:
            raise ServiceUnreachable(f"no answer from the service at {self.base_url}: {error}") from error


def _address(url: str) -> str:
    """Return the address of a service without a final slash.

    Raises:
        ValueError: the text is no URL, or contains a user or password, which the message does not show.
    """
    remedy = "write it like http://127.0.0.1:8000"
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError, ValueError):
        raise ValueError(f"service (not shown) is no address; {remedy}") from None
    if parsed.userinfo:
        raise ValueError(
            f"service ({parsed.host}) must not hold a user or password, which are never sent; {remedy}, and give the key "
            "in a file"
        )
    return url.rstrip("/")


def _pause_s(response: httpx.Response, attempt: int) -> float:
    """Return the seconds to wait before a request is repeated: those of the response's Retry-After header or, without
    one, a pause that grows exponentially."""
    # Jitter: clients that were rejected together must not return together.
    retry_after = response.headers.get("retry-after", "")
    if retry_after.isdecimal():
        return max(_SHORTEST_PAUSE_S, int(retry_after) * random.uniform(1.0, 1.25))
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**attempt) * random.uniform(0.5, 1.0)
