"""HTTP client of the worker protocol. One method per call; `call_patiently` repeats calls that can succeed later.

Errors are in client_errors; responses reads what the service answers.
"""

import json
import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TypeVar

import httpx

from shardtune.api_schemas.access.credentials import KeySource
from shardtune.api_schemas.protocol import PROTOCOL_VERSION, REQUEST_TIMEOUT_S, CannotExpress
from shardtune.api_schemas.trials.leases import (
    Heartbeat,
    HeartbeatAnswer,
    Lease,
    LeaseRequest,
    Registered,
    Registration,
    Report,
    ReportAnswer,
    UnreadableLease,
)
from shardtune.workers.agent.client_errors import (
    LeaseLost,
    LeaseUnreadable,
    RequestRejected,
    Unreachable,
    VersionRejected,
)
from shardtune.workers.agent.responses import detail, expect, problem_field, read_lease

_UNAUTHORIZED = 401
_LATER = {408, 425, 429}
_LOST = {404, 409, 410}

_JSON = {"content-type": "application/json"}
_TRACE_S = 30.0
"""Timeout in seconds for the upload of one trace (a file of some megabytes). The worker keeps renewing its lease during
the upload."""

VersionedMessage = Registration | LeaseRequest | Heartbeat | Report | UnreadableLease
Value = TypeVar("Value")


class _WorkerKey(httpx.Auth):
    """HTTP authentication with the worker's API key; after a 401 the key file is read again, since the key may have
    been rotated."""

    def __init__(self, keys: KeySource) -> None:
        self._keys = keys

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Send the request with the API key. If the service answers 401 and the key file contains another key by then,
        send the request once more with that key."""
        if self._keys.key is None:
            yield request
            return
        sent = self._keys.key
        request.headers["authorization"] = f"Bearer {sent}"
        response = yield request
        # Another thread may have read the new key meanwhile.
        if response.status_code == _UNAUTHORIZED and (self._keys.reread() or self._keys.key != sent):
            request.headers["authorization"] = f"Bearer {self._keys.key}"
            yield request


class WorkerClient:
    """HTTP client of one worker session; threads may share it (httpx clients allow it)."""

    def __init__(
        self,
        base_url: str,
        timeout_s: float = REQUEST_TIMEOUT_S,
        keys: KeySource | None = None,
        proxy: str | None = None,
    ) -> None:
        """Open the HTTP client. It uses no proxy but `proxy`; the environment's proxy variables are ignored."""
        self._keys = keys or KeySource()
        self._http = httpx.Client(
            base_url=base_url.rstrip("/"),
            timeout=timeout_s,
            auth=_WorkerKey(self._keys),
            # trust_env off: a proxy from the environment would see the key. Certificates from the environment are used.
            trust_env=False,
            proxy=proxy,
            verify=httpx.create_ssl_context(),
        )
        self._timeout_s = timeout_s
        self._was_accepted = False

    def close(self) -> None:
        """Close the client's HTTP connections."""
        self._http.close()

    def register(self, registration: Registration) -> Registered:
        """Register the worker with the service and return the worker session."""
        return expect(self._post("/v1/workers", registration), Registered)

    def lease(self, request: LeaseRequest) -> Lease | None:
        """Request a lease on work from the service; None when there is no work.

        Raises:
            LeaseLost: the service does not know this worker session.
            LeaseUnreadable: the response is a lease that this release cannot read.
        """
        response = self._post("/v1/leases", request, self._timeout_s + request.wait_s)
        if response.status_code == 204:
            return None
        return read_lease(response)

    def hand_back_unread(self, session: str, protocol_version: int, error: LeaseUnreadable) -> ReportAnswer:
        """Report that a lease cannot be read, so that the service gives its run to another worker at once."""
        message = UnreadableLease(
            protocol_version=protocol_version, session=session, attempt=error.attempt, message=str(error)
        )
        return expect(self._post(f"/v1/runs/{error.run_id}/unreadable", message), ReportAnswer)

    def heartbeat(self, run_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Renew the lease of a run and return the service's answer."""
        return expect(self._post(f"/v1/runs/{run_id}/heartbeat", heartbeat), HeartbeatAnswer)

    def report(self, run_id: str, report: Report) -> ReportAnswer:
        """Deliver the result of an attempt; delivering the same report again is harmless."""
        return expect(self._post(f"/v1/runs/{run_id}/report", report), ReportAnswer)

    def store_trace(self, session: str, run_id: str, attempt: int, rank: int, content: bytes) -> None:
        """Upload a rank's compressed trace; a second upload replaces the first."""
        headers = {
            "content-type": "application/octet-stream",
            "shardtune-session": session,
            "shardtune-attempt": str(attempt),
        }
        self._call("PUT", f"/v1/runs/{run_id}/traces/{rank}", content, _TRACE_S, headers)

    def wait_ready(self) -> bool:
        """Ask the service whether it is ready; returns true once it is.

        Raises:
            Unreachable: the service did not answer, or is not ready yet.
        """
        self._call("GET", "/readyz")
        return True

    def _post(self, path: str, body: VersionedMessage, timeout_s: float | None = None) -> httpx.Response:
        # A registration precedes the agreement on a version: it is written in full, and an older service ignores the rest.
        if body.protocol_version >= PROTOCOL_VERSION:
            return self._call("POST", path, body.model_dump_json(), timeout_s)
        try:
            content = body.written_for(body.protocol_version)
        except CannotExpress as error:
            raise RequestRejected(f"POST {path}: {error}") from error
        return self._call("POST", path, json.dumps(content), timeout_s)

    def _call(
        self,
        method: str,
        path: str,
        body: str | bytes | None = None,
        timeout_s: float | None = None,
        headers: Mapping[str, str] = _JSON,
    ) -> httpx.Response:
        try:
            response = self._http.request(
                method,
                path,
                content=body,
                headers=headers,
                timeout=timeout_s or self._timeout_s,
            )
        # No transport error: an answer that a proxy has compressed wrongly (DecodingError).
        except httpx.RequestError as error:
            raise Unreachable(f"{method} {path}: {type(error).__name__}: {error}") from error
        if response.is_success:
            self._was_accepted = True
            return response
        text = f"{method} {path}: {response.status_code} {detail(response)}"
        if response.status_code >= 500 or response.status_code in _LATER:
            raise Unreachable(text)
        # A key that worked before is being rotated: its file will have the new one soon.
        if response.status_code == _UNAUTHORIZED and self._was_accepted and self._keys.file is not None:
            raise Unreachable(f"{text}; waiting for another key in {self._keys.file}")
        if problem_field(response, "code") == "protocol_version":
            raise VersionRejected(text)
        raise LeaseLost(text) if response.status_code in _LOST else RequestRejected(text)


def backoff_s(first_s: float = 0.2, limit_s: float = 5.0, chooser: random.Random | None = None) -> Iterator[float]:
    """Endless sequence of pauses in seconds between retries. The upper limit of a pause grows exponentially up to a
    maximum; each pause is drawn at random from between half of that limit and the limit, so that workers do not retry
    at the same moment."""
    chooser = chooser or random.Random()
    pause_s = first_s
    while True:
        yield pause_s * chooser.uniform(0.5, 1.0)
        pause_s = min(limit_s, pause_s * 2)


def call_patiently(
    call: Callable[[], Value],
    give_up: Callable[[], bool],
    on_unreachable: Callable[[Unreachable], None] = lambda _: None,
    pauses_s: Iterator[float] | None = None,
) -> Value | None:
    """Repeat a request to the service until it is answered; None when `give_up` ended the repetition. Errors that
    repeating cannot fix are raised.

    The request is sent at least once: a result that is complete when the signal to stop arrives is still delivered.
    """
    for pause_s in pauses_s or backoff_s():
        try:
            return call()
        except Unreachable as error:
            on_unreachable(error)
        sleep_for(pause_s, give_up)
        if give_up():
            return None
    return None


def sleep_for(pause_s: float, give_up: Callable[[], bool]) -> None:
    """Sleep for the given number of seconds, or until `give_up` is true."""
    ends_s = time.monotonic() + pause_s
    # Short sleeps: a signal only sets a flag, which give_up reads.
    while not give_up() and time.monotonic() < ends_s:
        time.sleep(min(0.2, pause_s))
