"""A database that hangs, comes back, or fails over to its standby, under two replicas and a worker that goes on."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from shardtune.db.session import Database, upgrade
from tests.support.service import run_history
from tests.support.service.postgres_server import PostgresServer
from tests.support.service.replica_set import Replicas, replicas_of
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, quietly

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

LEASE_S = 6.0
SETTINGS = {"lease_s": LEASE_S, "heartbeat_s": 0.5, "sweep_s": 0.3, "poll_s": 0.1}
PATIENCE_S = 60.0


class Patient(threading.Thread):
    """A worker that repeats, at the other replica, whatever was not answered well; until the study has ended."""

    def __init__(self, replicas: Replicas, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._replicas, self._turn, self.runs = replicas, 0, 0
        self.worker = SimulatedWorker(replicas.clients[0], name, quietly).register()
        self.rejections: list[httpx.Response] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            lease = self._patiently(self.worker.lease)
            if lease is not None:
                self._patiently(lambda lease=lease: self.worker.do(lease))
                self.runs += 1
            self.over.wait(0.05)

    def _patiently(self, call: Callable[[], object]) -> object:
        while not self.over.is_set():
            try:
                return call()
            except httpx.HTTPStatusError as error:
                self.rejections.append(error.response)
                if error.response.status_code < 500:
                    return None  # the lease was lost meanwhile, as the protocol allows
            except httpx.TransportError:
                pass
            self._turn += 1
            self.worker.client = self._replicas.clients[self._turn % 2]
            self.over.wait(0.1)
        return None


@contextmanager
def at_work(replicas: Replicas) -> Iterator[tuple[Patient, str]]:
    """A worker in the middle of a study; at the end the study is complete, and every rejection told when to come again."""
    patient = Patient(replicas, "patient")
    study_id = replicas.clients[0].post("/v1/studies", json=SPEC).json()["study_id"]
    patient.start()
    until(lambda: patient.runs >= 3, "some runs")
    try:
        yield patient, study_id
        observed: dict[str, object] = {}

        def is_complete() -> bool:
            answer = replicas.clients[0].get(f"/v1/studies/{study_id}")
            observed["state"] = answer.json().get("state")
            return observed["state"] == "complete"

        until(is_complete, "the study is complete")
    finally:
        patient.over.set()
        patient.join(timeout=PATIENCE_S)
    later = [answer for answer in patient.rejections if answer.status_code == 503]
    assert {answer.json()["code"] for answer in later} <= {"database_unreachable", "database_busy"}
    assert all(int(answer.headers["retry-after"]) > 0 for answer in later)


def until(done: Callable[[], object], description: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < end_s, f"not within {PATIENCE_S:g} s: {description}"
        time.sleep(0.05)


def check(url: str) -> None:
    database = Database(url)
    assert run_history.faults(database) == []
    database.close()


def test_a_database_that_hangs_is_rejected_in_words_and_gone_on_with_when_it_comes_back(tmp_path: Path):
    with PostgresServer() as server:
        url = server.url.format(name="postgres")
        upgrade(url)
        with replicas_of(2, url, tmp_path, **SETTINGS) as replicas:
            with at_work(replicas) as (patient, _):
                server.send_signal(signal.SIGSTOP)
                answers = [client.get("/v1/studies") for client in replicas.clients]
                assert {answer.status_code for answer in answers} == {503}
                # Longer than a lease, too: the run is lost or not, but its end counts once.
                time.sleep(LEASE_S / 2)
                server.send_signal(signal.SIGCONT)
                before = patient.runs
                until(lambda: patient.runs > before, "the worker goes on")
            check(url)


def test_a_database_that_fails_over_loses_nothing(tmp_path: Path):
    with PostgresServer() as primary, primary.standby() as standby:
        url = f"{primary.url.format(name='postgres')}&host={standby.folder}&target_session_attrs=read-write"
        upgrade(primary.url.format(name="postgres"))
        primary.wait_for_standby()
        with replicas_of(2, url, tmp_path, **SETTINGS) as replicas:
            with at_work(replicas) as (patient, _):
                primary.crash()
                standby.promote()
                before = patient.runs
                until(lambda: patient.runs > before, "the worker goes on")
            check(standby.url.format(name="postgres"))
