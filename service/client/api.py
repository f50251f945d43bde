"""Synchronous client of the service's REST API, for the command line and for scripts. service.client.transport sends
its requests.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import httpx
from pydantic import TypeAdapter

from shardtune.api_schemas.access.credentials import KeySource
from shardtune.api_schemas.notifications.events import EventPage
from shardtune.api_schemas.recommendations.best import BestConfig, Recommendation, Resolved, UserDecision
from shardtune.api_schemas.studies.comparisons import Comparison
from shardtune.api_schemas.studies.exports import Export
from shardtune.api_schemas.studies.insights import Importance, ParetoFront
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_changes import CloneRequest, Extension
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.diagnosis_runs import TrialDiagnosis
from shardtune.api_schemas.trials.trial import Rejection, Trial
from shardtune.service.client.fleet import FleetClient
from shardtune.service.client.transport import (
    LATER,
    Calls,
    NoService,
    ServiceError,
    ServiceRejected,
    ServiceUnreachable,
)

__all__ = ["NoService", "ServiceClient", "ServiceError", "ServiceRejected", "ServiceUnreachable"]

_TRIALS = TypeAdapter(list[Trial])
_REJECTIONS = TypeAdapter(list[Rejection])
_STUDIES = TypeAdapter(list[Study])
_EVENTS = 1000
"""Maximum number of events that the client reads per request."""


class ServiceClient(FleetClient):
    """Client of one Shardtune service. Every method that sends a request raises `ServiceError` on failure."""

    def __init__(
        self,
        base_url: str,
        transport: httpx.BaseTransport | None = None,
        api_key: str | KeySource | None = None,
        patience_s: float = 60.0,
        timeout: httpx.Timeout | float = 30.0,
    ) -> None:
        """Prepare the client; no request is sent yet.

        Without `api_key` the client sends the key of the environment (`SHARDTUNE_API_KEY`, or the content of the file in
        `SHARDTUNE_API_KEY_FILE`). `patience_s` is the total time in seconds that a call waits for a service that is busy
        or restarting (429, 503) before it raises. `timeout`: seconds for each part of one request.

        Raises:
            ValueError: the key's file cannot be read.
        """
        keys = (
            api_key
            if isinstance(api_key, KeySource)
            else KeySource(api_key)
            if api_key
            else KeySource.from_environment()
        )
        super().__init__(Calls(base_url, keys, transport, patience_s, timeout))
        self._keys = keys

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the client's connections to the service."""
        self._calls.close()

    @property
    def base_url(self) -> str:
        """Address of the service, without a final slash."""
        return self._calls.base_url

    @property
    def api_key(self) -> str | None:
        """API key that the client sends; None without one."""
        return self._keys.key

    def ready(self) -> bool:
        """Whether the service answers and its database is reachable and migrated."""
        return self._calls.ready()

    def check_ready(self) -> None:
        """Check that the service answers, and that its database is reachable and migrated; raises `ServiceError` if not."""
        self._calls.send("GET", "/readyz", patience_s=0)

    def create_study(
        self, spec: StudyRequest, study_id: str | None = None, idempotency_key: str | None = None
    ) -> Study:
        """Create a study; the service checks it against the registered workers first.

        For a day, a repetition with the same `idempotency_key` creates nothing and returns the first study as it was made.
        """
        params = {"study_id": study_id} if study_id else None
        body = spec.model_dump(mode="json")
        return self._calls.read(Study, self._calls.send("POST", "/v1/studies", body, params, idempotency_key))

    def best_config(self, target_key: str) -> BestConfig:
        """Return the current recommendation for a tuning target (model, workload, cluster), by the `target_key` of an
        earlier response.
        """
        return self._calls.read(BestConfig, self._calls.send("GET", "/v1/best", params={"target_key": target_key}))

    def resolve(self, spec: StudyRequest, accept_nearest: bool = False) -> Resolved:
        """Return the recommendation for a study's tuning target (model, workload, cluster), or the study, new or
        already running, that will find it.
        """
        body = {"study": spec.model_dump(mode="json"), "accept_nearest": accept_nearest}
        return self._calls.read(Resolved, self._calls.send("POST", "/v1/best:resolve", body))

    def decide(
        self, target_key: str, action: UserDecision, note: str | None = None, recommendation_id: str | None = None
    ) -> Recommendation:
        """Pin, unpin, approve, reject or roll back the recommendation of a tuning target (model, workload, cluster)."""
        body = {"note": note, "recommendation_id": recommendation_id}
        answer = self._calls.send("POST", f"/v1/best:{action}", body, {"target_key": target_key})
        return self._calls.read(Recommendation, answer)

    def study(self, study_id: str) -> Study:
        """Return the current state of a study."""
        return self._calls.read(Study, self._calls.send("GET", f"/v1/studies/{study_id}"))

    def studies(self, states: Sequence[StudyState] = (), at_most: int | None = None) -> list[Study]:
        """List the studies in the given states, newest first; an empty collection of states means all."""
        params = {"state": [state.value for state in states]}
        return self._calls.read_rows(_STUDIES, self._calls.pages("/v1/studies", "studies", params, at_most))

    def events(self, study_id: str, after: int = 0, patience_s: float | None = None) -> EventPage:
        """Return the events of a study whose numbers are above `after`. `patience_s`: maximum seconds for which this
        call waits for a busy service, if lower than the client's maximum."""
        params = {"after": after, "limit": _EVENTS}
        return self._calls.read(
            EventPage, self._calls.send("GET", f"/v1/studies/{study_id}/events", params=params, patience_s=patience_s)
        )

    def wait(
        self,
        study_id: str,
        on_change: Callable[[Study], None] = lambda _: None,
        timeout_s: float | None = None,
        poll_s: float = 2.0,
    ) -> Study:
        """Follow a study until it ends, and return it. The callback `on_change` receives the study at once, and again
        after each event of the study.

        Raises:
            TimeoutError: the study had not ended after `timeout_s`.
            ServiceUnreachable: the service did not answer for longer than the client's patience.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        after, away_since_s = 0, None
        while True:
            left_s = math.inf if until_s is None else max(0.0, until_s - time.monotonic())
            try:
                # Events are cheaper than the study: one indexed query, and an empty page where nothing happened.
                page = self.events(study_id, after, left_s)
                if page.events or page.is_last:
                    after = page.next_after
                    answer = self._calls.send("GET", f"/v1/studies/{study_id}", patience_s=left_s)
                    study = self._calls.read(Study, answer)
                    on_change(study)
                    if not study.state.is_open:
                        return study
                away_since_s = None
            except ServiceUnreachable:
                # A restart of the service takes seconds; a study takes hours, and need not be given up for it.
                away_since_s = away_since_s or time.monotonic()
                if time.monotonic() - away_since_s > self._calls.patience_s:
                    raise
            except ServiceRejected as busy:
                if busy.status not in LATER or left_s >= self._calls.patience_s:
                    raise
                # It asks for more time than is left.
                time.sleep(max(0.0, (until_s or 0.0) - time.monotonic()))
            if until_s is not None and time.monotonic() >= until_s:
                raise TimeoutError(f"study {study_id} had not ended after {timeout_s:g} s")
            time.sleep(poll_s if until_s is None else min(poll_s, max(0.0, until_s - time.monotonic())))

    @contextmanager
    def owning(self, study_id: str) -> Iterator[None]:
        """Context manager that cancels the study if the `with` body is interrupted (Ctrl-C)."""
        try:
            yield
        except KeyboardInterrupt:
            self.cancel(study_id)
            raise

    def pause(self, study_id: str, paused: bool) -> Study:
        """Pause a study, or resume it."""
        action = "pause" if paused else "resume"
        return self._calls.read(Study, self._calls.send("POST", f"/v1/studies/{study_id}:{action}"))

    def cancel(self, study_id: str) -> Study:
        """Cancel a study; its measurements are kept."""
        return self._calls.read(Study, self._calls.send("POST", f"/v1/studies/{study_id}:cancel"))

    def delete(self, study_id: str, withdraw: bool = False) -> Study:
        """Delete a study, which hides it from all lists. With `withdraw`, its recommendation is withdrawn, too."""
        params = {"withdraw": str(withdraw).lower()}
        return self._calls.read(Study, self._calls.send("DELETE", f"/v1/studies/{study_id}", params=params))

    def undelete(self, study_id: str) -> Study:
        """Restore a deleted study."""
        return self._calls.read(Study, self._calls.send("POST", f"/v1/studies/{study_id}:undelete"))

    def extend(self, study_id: str, more: Extension) -> Study:
        """Raise the budget of a study, even if the study has ended."""
        body = more.model_dump(mode="json", exclude_none=True)
        return self._calls.read(Study, self._calls.send("POST", f"/v1/studies/{study_id}:extend", body))

    def clone(self, study_id: str, changes: CloneRequest = CloneRequest(), new_id: str | None = None) -> Study:
        """Create a study from another study's spec, with some of the fields replaced."""
        params = {"new_id": new_id} if new_id else None
        # `baseline: null` removes the baseline, while a field that is not set keeps its value.
        body = changes.model_dump(mode="json", exclude_unset=True)
        return self._calls.read(Study, self._calls.send("POST", f"/v1/studies/{study_id}:clone", body, params))

    def trials(self, study_id: str) -> list[Trial]:
        """List the trials of a study by number."""
        return self._calls.read_rows(_TRIALS, self._calls.pages(f"/v1/studies/{study_id}/trials", "trials"))

    def rejections(self, study_id: str) -> list[Rejection]:
        """List the configurations of a study that the memory gate rejected (predicted not to fit), each with the
        reason.
        """
        return self._calls.read_rows(_REJECTIONS, self._calls.pages(f"/v1/studies/{study_id}/rejections", "rejections"))

    def best(self, study_id: str) -> StudyResult:
        """Return the result of a complete study; the service rejects the request with 409 while the study is not
        complete.
        """
        return self._calls.read(StudyResult, self._calls.send("GET", f"/v1/studies/{study_id}/best"))

    def diagnose(self, study_id: str, number: int) -> TrialDiagnosis:
        """Request a run of a trial of an ended study under the profiler. If such a run already waits or executes, it
        is returned and no second one is added."""
        return self._calls.read(
            TrialDiagnosis, self._calls.send("POST", f"/v1/studies/{study_id}/trials/{number}:diagnose")
        )

    def diagnosis(self, study_id: str, number: int) -> TrialDiagnosis:
        """Return the latest diagnosis of a trial, or the state of its run under the profiler. The service rejects the
        request with 404 if no diagnosis was requested."""
        return self._calls.read(
            TrialDiagnosis, self._calls.send("GET", f"/v1/studies/{study_id}/trials/{number}/diagnosis")
        )

    def pareto(self, study_id: str) -> ParetoFront:
        """Return the fastest trial of a study for each amount of memory (Pareto front)."""
        return self._calls.read(ParetoFront, self._calls.send("GET", f"/v1/studies/{study_id}/pareto"))

    def importance(self, study_id: str) -> Importance:
        """Return the importance of each knob (tuned parameter) for the speed of a study's trials."""
        return self._calls.read(Importance, self._calls.send("GET", f"/v1/studies/{study_id}/importance"))

    def compare(self, picks: Sequence[str]) -> Comparison:
        """Compare two to four configurations, named by study id, `study:number`, retune id or target key."""
        return self._calls.read(Comparison, self._calls.send("GET", "/v1/comparisons", params={"pick": list(picks)}))

    def export(self, study_id: str, which: str = "best", form: str = "standard") -> Export:
        """Return the files of a configuration of a study (`best`, `baseline`, `target` or a trial's number) in an export
        format.
        """
        params = {"which": which, "format": form}
        return self._calls.read(Export, self._calls.send("GET", f"/v1/studies/{study_id}/export", params=params))
