"""A change that rolls over five workers of three service processes on Postgres: one event, one retune, to its end."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.support.service.replica_set import Replicas, replicas_of
from tests.support.service.scenarios import fields_of
from tests.support.service.simulated_worker import FINGERPRINT, SPEC, SimulatedWorker, quietly

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

OLD = FINGERPRINT.model_copy(update={"driver": "550.54.14", "overridden": ("driver",)})
NEW = FINGERPRINT.model_copy(update={"driver": "560.35.03", "overridden": ("driver",)})
DEBOUNCE_S = 4
SETTINGS = {
    "fingerprint_check_s": 0.3, "fingerprint_debounce_s": DEBOUNCE_S, "retune_every_s": 0.3, "sweep_s": 0.5, "poll_s": 0.1,
}  # fmt: skip


@pytest.fixture
def replicas(database_url: str, tmp_path: Any) -> Iterator[Replicas]:
    with replicas_of(3, database_url, tmp_path, **SETTINGS) as opened:
        yield opened


class Node(threading.Thread):
    """A machine whose worker works until it is stopped, and can be restarted with another fingerprint."""

    def __init__(self, name: str, client: httpx.Client) -> None:
        super().__init__(name=name, daemon=True)
        self._client, self._changes, self._over = client, threading.Lock(), threading.Event()
        self.worker = SimulatedWorker(client, name, quietly, fingerprint=OLD).register()

    def restart(self, fingerprint: Any) -> None:
        with self._changes:
            self.worker = SimulatedWorker(self._client, self.name, quietly, fingerprint=fingerprint).register()

    def run(self) -> None:
        while not self._over.wait(0.02):
            with self._changes:
                lease = self.worker.lease()
                if lease is not None:
                    self.worker.do(lease)

    def stop(self) -> None:
        self._over.set()
        self.join(timeout=30)


@contextmanager
def nodes(replicas: Replicas, count: int) -> Iterator[list[Node]]:
    crew = [Node(f"node-{n}", replicas.clients[n % len(replicas.clients)]) for n in range(count)]
    for node in crew:
        node.start()
    try:
        yield crew
    finally:
        for node in crew:
            node.stop()


def until(condition: Callable[[], Any], seconds: float, description: str, replicas: Replicas) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s: {description}\n{replicas.logs()}")


def served(replicas: Replicas) -> Any:
    recommended = replicas.get("/v1/recommendations", state="recommended")["recommendations"]
    return [replicas.get("/v1/best", target_key=recommendation["target_key"]) for recommendation in recommended]


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_rolling_change_is_one_event_and_one_retune_that_challenges_the_incumbent_and_ends(replicas):
    with nodes(replicas, 5) as crew:
        first = replicas.clients[0].post("/v1/studies", json=SPEC).json()["study_id"]
        (before,) = until(lambda: served(replicas), 60, "the study is answered", replicas)
        assert before["freshness"] == "fresh" and before["fingerprint"]["driver"] == OLD.driver
        for node in crew:
            time.sleep(DEBOUNCE_S / 10)
            assert not replicas.get("/v1/retunes")["retunes"]
            node.restart(NEW)
        key = before["target_key"]
        is_stale = lambda: replicas.get("/v1/best", target_key=key)["freshness"] == "stale"  # noqa: E731
        until(is_stale, DEBOUNCE_S, "stale within the debounce", replicas)
        assert replicas.get("/v1/best", target_key=key)["changed_fields"] == ["driver"]
        (retune,) = until(lambda: replicas.get("/v1/retunes")["retunes"], DEBOUNCE_S + 10, "asked for", replicas)
        assert (retune["target_key"], retune["cause"], fields_of(retune)) == (key, "fingerprint", ["driver"])
        path = f"/v1/retunes/{retune['retune_id']}"
        ended = until(lambda: (r := replicas.get(path))["state"] == "ended" and r, 90, "it ends", replicas)
        time.sleep(2 * DEBOUNCE_S)
        assert len(replicas.get("/v1/retunes")["retunes"]) == 1
    assert ended["outcome"] == "kept", ended
    challenge = replicas.get(f"/v1/studies/{ended['challenge_study_id']}")
    assert challenge["study_id"] != first and ended["search_study_id"] is None
    assert challenge["fingerprint"]["driver"] == NEW.driver
    after = replicas.get("/v1/best", target_key=key)
    assert after["freshness"] == "fresh" and after["study_id"] == challenge["study_id"]
    assert after["fingerprint"]["driver"] == NEW.driver and after["fingerprint"]["overridden"] == ["driver"]
    assert after["best"]["config"] == before["best"]["config"]
    history = replicas.get("/v1/best:history", target_key=key)["decisions"]
    assert [entry["action"] for entry in history].count("stale") == 1
    # Three processes took the steps of the retune, each many times.
    studies = replicas.get("/v1/studies", limit=100)["studies"]
    created = [study["system_study"]["kind"] for study in studies if study["system_study"] is not None]
    assert created == ["challenge"] and [entry["action"] for entry in history].count("renewed") <= 1
    after_history = replicas.get("/v1/best:history", target_key=after["target_key"])["decisions"]
    assert [entry["action"] for entry in after_history].count("renewed") == 1
