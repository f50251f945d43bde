"""The studies of a soak: created as long as few are open, and waited for at the end."""

import random
import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.support.service.simulated_worker import CLUSTER, SPEC

_MOST_OPEN = 4
_ANSWER_S = 3.0
"""A replica that is frozen takes connections and answers nothing."""


class Studies:
    """Studies on a service, by any of its replicas."""

    def __init__(self, urls: list[str], chooser: random.Random) -> None:
        self._urls, self._chooser = urls, chooser
        self.states: dict[str, str] = {}
        """State by study."""

    def create(self) -> None:
        """Create a study while few are open."""
        # Drawn in any case, so that what is drawn next does not depend on how fast studies end.
        spec = SPEC | {"cluster": CLUSTER.model_dump(), "budget": {"max_trials": self._chooser.randint(4, 12)}}
        seed = self._chooser.randrange(1000)
        if not self._read() or sum(state == "running" for state in self.states.values()) >= _MOST_OPEN:
            return
        answer = self._call("POST", "/v1/studies", spec | {"seed": seed})
        # 422 while no worker is live.
        if answer is not None and answer.status_code == 201:
            self.states[answer.json()["study_id"]] = "running"

    def finish(self, patience_s: float, meanwhile: Callable[[], None]) -> dict[str, str]:
        """Wait until every study has ended; returns the state of those that have not."""
        until_s = time.monotonic() + patience_s
        while True:
            meanwhile()
            is_read = self._read()
            unfinished = {study: state for study, state in self.states.items() if state in ("running", "paused")}
            if (is_read and not unfinished) or time.monotonic() > until_s:
                return unfinished
            time.sleep(1)

    def _read(self) -> bool:
        answer = self._call("GET", "/v1/studies?limit=500", None)
        if answer is None or not answer.is_success:
            return False
        body: Any = answer.json()
        rows = body if isinstance(body, list) else body["studies"]
        self.states |= {row["study_id"]: row["state"] for row in rows}
        return True

    def _call(self, method: str, path: str, body: object) -> httpx.Response | None:
        for url in self._urls:
            try:
                return httpx.request(method, url + path, json=body, timeout=_ANSWER_S, trust_env=False)
            except httpx.TransportError:
                continue
        return None
