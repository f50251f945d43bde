"""A synchronous client of the service's REST API, for the command line and for scripts; its requests are service.client.transport."""

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
from shardtune.api_schemas.studies.study import Study, StudyRequest, StudyResult, StudyState
from shardtune.api_schemas.studies.study_changes import CloneRequest, Extension
from shardtune.api_schemas.trials.diagnosis_runs import TrialDiagnosis
from shardtune.api_schemas.trials.trial import Rejection, Trial
from shardtune.service.client.fleet import FleetClient
from shardtune.service.client.transport import Calls, ServiceError, ServiceRejected, ServiceUnreachable

__all__ = ["ServiceClient", "ServiceError", "ServiceRejected", "ServiceUnreachable"]

_TRIALS = TypeAdapter(list[Trial])
_REJECTIONS = TypeAdapter(list[Rejection])
_STUDIES = TypeAdapter(list[Study])
_EVENTS = 1000
"""Read at once."""


class ServiceClient(FleetClient):
    """Calls of one service. Every method raises `ServiceError`."""

    def __init__(
        self,
        base_url: str,
        transport: httpx.BaseTransport | None = None,
        api_key: str | KeySource | None = None,
        patience_s: float = 60.0,
    ) -> None:
        """Without `api_key` the environment's is sent (`SHARDTUNE_API_KEY`, or the file that `SHARDTUNE_API_KEY_FILE` names).

        `patience_s`: in all, how long a call waits for a service that is busy or restarting (429, 503) before it raises.

        Raises:
            ValueError: the key's file cannot be read.
        """
        keys = api_key if isinstance(api_key, KeySource) else KeySource(api_key) if api_key else KeySource.of()
        super().__init__(Calls(base_url, keys, transport, patience_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._calls.close()

    @property
    def base_url(self) -> str:
        """Where the service is."""
        return self._calls.base_url

    def ready(self) -> bool:
        """True when the database is reachable and migrated."""
        return self._calls.ready()

    def create_study(self, spec: StudyRequest, study_id: str | None = None) -> Study:
        """Create a study; the service checks it against the registered workers first."""
        params = {"study_id": study_id} if study_id else None
        return Study.model_validate(self._calls.send("POST", "/v1/studies", spec.model_dump(mode="json"), params))

    def best_config(self, target_key: str) -> BestConfig:
        """What is served under a key of an earlier answer."""
        return BestConfig.model_validate(self._calls.send("GET", "/v1/best", params={"target_key": target_key}))

    def resolve(self, spec: StudyRequest, accept_nearest: bool = False) -> Resolved:
        """The best configuration for a study's case, or the study that will know it: started now, or running already."""
        body = {"study": spec.model_dump(mode="json"), "accept_nearest": accept_nearest}
        return Resolved.model_validate(self._calls.send("POST", "/v1/best:resolve", body))

    def decide(
        self, target_key: str, action: UserDecision, note: str | None = None, recommendation_id: str | None = None
    ) -> Recommendation:
        """Pin, unpin, approve, reject or roll back what is served under a key."""
        body = {"note": note, "recommendation_id": recommendation_id}
        answer = self._calls.send("POST", f"/v1/best:{action}", body, {"target_key": target_key})
        return Recommendation.model_validate(answer)

    def study(self, study_id: str) -> Study:
        """One study as it stands."""
        return Study.model_validate(self._calls.send("GET", f"/v1/studies/{study_id}"))

    def studies(self, states: Sequence[StudyState] = (), at_most: int | None = None) -> list[Study]:
        """Studies in these states (none: in any), newest first."""
        params = {"state": [state.value for state in states]}
        return _STUDIES.validate_python(self._calls.pages("/v1/studies", "studies", params, at_most))

    def events(self, study_id: str, after: int = 0) -> EventPage:
        """What happened to a study after an event."""
        params = {"after": after, "limit": _EVENTS}
        return EventPage.model_validate(self._calls.send("GET", f"/v1/studies/{study_id}/events", params=params))

    def wait(
        self,
        study_id: str,
        seen: Callable[[Study], None] = lambda _: None,
        timeout_s: float | None = None,
        poll_s: float = 2.0,
    ) -> Study:
        """Follow a study until it ends; `seen` gets it now and whenever something has happened to it.

        A service that does not answer is waited for, for the client's patience.

        Raises:
            TimeoutError: it had not ended after `timeout_s`.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        after, away_since_s = 0, None
        while True:
            try:
                page = self.events(study_id, after)
                if page.events or page.is_last:
                    after, study = page.next_after, self.study(study_id)
                    seen(study)
                    if not study.state.is_open:
                        return study
                away_since_s = None
            except ServiceUnreachable:
                away_since_s = away_since_s or time.monotonic()
                if time.monotonic() - away_since_s > self._calls.patience_s:
                    raise
            if until_s is not None and time.monotonic() >= until_s:
                raise TimeoutError(f"study {study_id} had not ended after {timeout_s:g} s")
            time.sleep(poll_s)

    @contextmanager
    def owning(self, study_id: str) -> Iterator[None]:
        """Cancel the study when the block is interrupted (Ctrl-C): nobody waits for it any more."""
        try:
            yield
        except KeyboardInterrupt:
            self.cancel(study_id)
            raise

    def pause(self, study_id: str, paused: bool) -> Study:
        """Pause a study, or go on with it."""
        action = "pause" if paused else "resume"
        return Study.model_validate(self._calls.send("POST", f"/v1/studies/{study_id}:{action}"))

    def cancel(self, study_id: str) -> Study:
        """End a study; what was measured is kept."""
        return Study.model_validate(self._calls.send("POST", f"/v1/studies/{study_id}:cancel"))

    def delete(self, study_id: str, withdraw: bool = False) -> Study:
        """Leave a study out of all lists; `withdraw`: its answer is served no longer."""
        params = {"withdraw": str(withdraw).lower()}
        return Study.model_validate(self._calls.send("DELETE", f"/v1/studies/{study_id}", params=params))

    def undelete(self, study_id: str) -> Study:
        """Show a deleted study again."""
        return Study.model_validate(self._calls.send("POST", f"/v1/studies/{study_id}:undelete"))

    def extend(self, study_id: str, more: Extension) -> Study:
        """Raise a study's budget, also when it has ended."""
        body = more.model_dump(mode="json", exclude_none=True)
        return Study.model_validate(self._calls.send("POST", f"/v1/studies/{study_id}:extend", body))

    def clone(self, study_id: str, changes: CloneRequest = CloneRequest(), new_id: str | None = None) -> Study:
        """Create a study from another one's spec, with some of its fields replaced."""
        params = {"new_id": new_id} if new_id else None
        body = changes.model_dump(mode="json", exclude_unset=True)
        return Study.model_validate(self._calls.send("POST", f"/v1/studies/{study_id}:clone", body, params))

    def trials(self, study_id: str) -> list[Trial]:
        """The study's trials by number."""
        return _TRIALS.validate_python(self._calls.pages(f"/v1/studies/{study_id}/trials", "trials"))

    def rejections(self, study_id: str) -> list[Rejection]:
        """Configurations the memory gate rejected, with the reason of each."""
        return _REJECTIONS.validate_python(self._calls.pages(f"/v1/studies/{study_id}/rejections", "rejections"))

    def best(self, study_id: str) -> StudyResult:
        """The answer of a finished study; rejected with 409 before."""
        return StudyResult.model_validate(self._calls.send("GET", f"/v1/studies/{study_id}/best"))

    def diagnose(self, study_id: str, number: int) -> TrialDiagnosis:
        """Have a trial of an ended study run under the profiler; while one waits or runs, it is no second one."""
        return TrialDiagnosis.model_validate(
            self._calls.send("POST", f"/v1/studies/{study_id}/trials/{number}:diagnose")
        )

    def diagnosis(self, study_id: str, number: int) -> TrialDiagnosis:
        """The last one of a trial, or what became of its run; rejected with 404 where nobody asked for one."""
        return TrialDiagnosis.model_validate(
            self._calls.send("GET", f"/v1/studies/{study_id}/trials/{number}/diagnosis")
        )

    def pareto(self, study_id: str) -> ParetoFront:
        """The fastest trial for each amount of memory."""
        return ParetoFront.model_validate(self._calls.send("GET", f"/v1/studies/{study_id}/pareto"))

    def importance(self, study_id: str) -> Importance:
        """Which knobs mattered for speed."""
        return Importance.model_validate(self._calls.send("GET", f"/v1/studies/{study_id}/importance"))

    def compare(self, picks: Sequence[str]) -> Comparison:
        """Configurations side by side: studies, `study:number`, retunes or target keys."""
        return Comparison.model_validate(self._calls.send("GET", "/v1/comparisons", params={"pick": list(picks)}))

    def export(self, study_id: str, which: str = "best", form: str = "standard") -> Export:
        """Files of a contender."""
        params = {"which": which, "format": form}
        return Export.model_validate(self._calls.send("GET", f"/v1/studies/{study_id}/export", params=params))
