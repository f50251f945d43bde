"""A synchronous client of the service's REST API, for the command line and for scripts.

ServiceError
├── ServiceUnreachable   no answer
└── ServiceRefused       an answer of 400 or above, as problem+json
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote
from uuid import uuid4

import httpx
from pydantic import TypeAdapter

from api_schemas import credentials
from api_schemas.best import BestConfig, Recommendation, Resolved
from api_schemas.exports import Export
from api_schemas.fingerprints import FingerprintDetail, FingerprintRecord
from api_schemas.insights import Importance, ParetoFront
from api_schemas.studies import Study, StudyResult, StudySpec
from api_schemas.study_changes import CloneRequest, Extension
from api_schemas.trials import Rejection, Trial

_TRIALS = TypeAdapter(list[Trial])
_REJECTIONS = TypeAdapter(list[Rejection])
_STUDIES = TypeAdapter(list[Study])


class ServiceError(Exception):
    """The service did not do what it was asked for."""


class ServiceUnreachable(ServiceError):
    """Nothing answers at the address."""


class ServiceRefused(ServiceError):
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
        lines = [_line(error) for error in self.errors]
        return lines or [self.detail]


def _line(error: Mapping[str, Any]) -> str:
    field, message = str(error.get("field") or ""), str(error.get("message") or "").removeprefix("Value error, ")
    parent, _, name = field.rpartition(".")
    if not field or message.startswith(f"{field} ("):
        return message
    if message.startswith(f"{name} ("):
        return f"{parent}.{message}" if parent else message
    if error.get("value") is None or str(error["value"]) in message:
        return f"{field}: {message}"
    value = repr(error["value"])
    return f"{field} ({value if len(value) <= 80 else value[:77] + '…'}): {message}"


class ServiceClient:
    """Calls of one service. Every method raises `ServiceError`."""

    def __init__(self, base_url: str, transport: httpx.BaseTransport | None = None, api_key: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        key = api_key or credentials.api_key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # trust_env off: a proxy of the environment must not be asked for an address on this machine.
        self._http = httpx.Client(
            base_url=self.base_url, timeout=30, transport=transport, trust_env=False, headers=headers
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._http.close()

    def ready(self) -> bool:
        """True when the database is reachable and migrated."""
        try:
            return self._http.get("/readyz", timeout=5).is_success
        except httpx.TransportError:
            return False

    def workers(self) -> list[dict[str, Any]]:
        """Registered workers, as the service lists them."""
        return self._all("/v1/workers", "workers")

    def fingerprints(self, worker: str | None = None, current_only: bool = False) -> list[FingerprintRecord]:
        """Hardware and software that workers have reported, newest first."""
        wanted = {"current": str(current_only).lower()} | ({"worker": worker} if worker else {})
        return [FingerprintRecord.model_validate(row) for row in self._all("/v1/fingerprints", "fingerprints", wanted)]

    def fingerprint(self, fingerprint_id: str) -> FingerprintDetail:
        """One fingerprint with what depends on it."""
        return FingerprintDetail.model_validate(self._call("GET", f"/v1/fingerprints/{quote(fingerprint_id, safe='')}"))

    def create_study(self, spec: StudySpec, study_id: str | None = None) -> Study:
        """Create a study; the service checks it against the registered workers first."""
        params = {"study_id": study_id} if study_id else None
        return Study.model_validate(self._call("POST", "/v1/studies", spec.model_dump(mode="json"), params))

    def best_config(self, study_key: str) -> BestConfig:
        """What is served under a key of an earlier answer."""
        return BestConfig.model_validate(self._call("GET", "/v1/best", params={"study_key": study_key}))

    def resolve(self, spec: StudySpec, accept_nearest: bool = False) -> Resolved:
        """The best configuration for a study's case, or the study that will know it: started now, or running already."""
        body = {"study": spec.model_dump(mode="json"), "accept_nearest": accept_nearest}
        return Resolved.model_validate(self._call("POST", "/v1/best:resolve", body))

    def decide(self, study_key: str, action: str, note: str | None = None) -> Recommendation:
        """`pin`, `unpin`, `approve`, `reject` or `rollback` what is served under a key."""
        answer = self._call("POST", f"/v1/best:{action}", {"note": note}, {"study_key": study_key})
        return Recommendation.model_validate(answer)

    def study(self, study_id: str) -> Study:
        """One study as it stands."""
        return Study.model_validate(self._call("GET", f"/v1/studies/{study_id}"))

    def studies(self) -> list[Study]:
        """Known studies, in the service's order."""
        return _STUDIES.validate_python(self._all("/v1/studies", "studies"))

    def pause(self, study_id: str, paused: bool) -> Study:
        """Pause a study, or go on with it."""
        action = "pause" if paused else "resume"
        return Study.model_validate(self._call("POST", f"/v1/studies/{study_id}:{action}"))

    def cancel(self, study_id: str) -> Study:
        """End a study; what was measured is kept."""
        return Study.model_validate(self._call("POST", f"/v1/studies/{study_id}:cancel"))

    def extend(self, study_id: str, more: Extension) -> Study:
        """Raise a study's budget, also when it has ended."""
        body = more.model_dump(mode="json", exclude_none=True)
        return Study.model_validate(self._call("POST", f"/v1/studies/{study_id}:extend", body))

    def clone(self, study_id: str, changes: CloneRequest = CloneRequest(), new_id: str | None = None) -> Study:
        """Create a study from another one's spec, with some of its fields replaced."""
        params = {"new_id": new_id} if new_id else None
        body = changes.model_dump(mode="json", exclude_unset=True)
        return Study.model_validate(self._call("POST", f"/v1/studies/{study_id}:clone", body, params))

    def trials(self, study_id: str) -> list[Trial]:
        """The study's trials by number."""
        return _TRIALS.validate_python(self._all(f"/v1/studies/{study_id}/trials", "trials"))

    def rejections(self, study_id: str) -> list[Rejection]:
        """Configurations the memory gate refused, with the reason of each."""
        return _REJECTIONS.validate_python(self._all(f"/v1/studies/{study_id}/rejections", "rejections"))

    def best(self, study_id: str) -> StudyResult:
        """The answer of a finished study; refused with 409 before."""
        return StudyResult.model_validate(self._call("GET", f"/v1/studies/{study_id}/best"))

    def pareto(self, study_id: str) -> ParetoFront:
        """The fastest trial for each amount of memory."""
        return ParetoFront.model_validate(self._call("GET", f"/v1/studies/{study_id}/pareto"))

    def importance(self, study_id: str) -> Importance:
        """Which knobs mattered for speed."""
        return Importance.model_validate(self._call("GET", f"/v1/studies/{study_id}/importance"))

    def export(self, study_id: str, which: str = "best", form: str = "standard") -> Export:
        """Files of a contender."""
        params = {"which": which, "format": form}
        return Export.model_validate(self._call("GET", f"/v1/studies/{study_id}/export", params=params))

    def _call(self, method: str, path: str, body: object = None, params: Mapping[str, str] | None = None) -> Any:
        # The connection may have been closed as the request was sent: named, it can be sent again.
        headers = {"Idempotency-Key": str(uuid4())} if method == "POST" else {}
        try:
            try:
                response = self._http.request(method, path, json=body, params=params, headers=headers)
            except httpx.RemoteProtocolError:
                response = self._http.request(method, path, json=body, params=params, headers=headers)
        except httpx.TransportError as error:
            raise ServiceUnreachable(f"no answer from the service at {self.base_url}: {error}") from error
        if response.is_success:
            return response.json()
        try:
            problem = response.json()
        except ValueError:
            problem = {}
        raise ServiceRefused(response.status_code, problem if isinstance(problem, dict) else {})

    def _all(self, path: str, name: str, wanted: Mapping[str, str] | None = None) -> list[Any]:
        """Every page of a list."""
        rows: list[Any] = []
        params = {"limit": "500", **(wanted or {})}
        while True:
            page = self._call("GET", path, params=params)
            rows += page[name]
            if page["next_page_token"] is None:
                return rows
            params["page_token"] = page["next_page_token"]
