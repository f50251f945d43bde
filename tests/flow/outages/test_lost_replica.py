"""A replica that is lost in mid-transaction, frozen or cut off without a word, while another one goes on.

The moment is made, not waited for: the test holds a run's row; a report of it makes the replica lock the study and wait
for the run; the replica is lost; the row is let go, and from then on the lost replica's session holds study and run.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import psycopg
import pytest
from sqlalchemy import make_url

from shardtune.db.session import Database, upgrade
from tests.flow.outages.severable_network import HERE, CutNetwork
from tests.support.requirements import missing
from tests.support.service import run_history
from tests.support.service.postgres_server import PostgresServer
from tests.support.service.replica import Replica
from tests.support.service.scenarios import bearer, make_key
from tests.support.service.simulated_worker import MODEL_SUMMARY, SPEC, SimulatedWorker, measurement, quietly

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

SETTINGS = {"lease_s": 8, "heartbeat_s": 0.5, "sweep_s": 0.3, "poll_s": 0.1}
GOES_ON_S = 30.0


def until(done: Callable[[], object], description: str) -> None:
    end_s = time.monotonic() + GOES_ON_S
    while not done():
        assert time.monotonic() < end_s, f"not within {GOES_ON_S:g} s: {description}"
        time.sleep(0.05)


@contextmanager
def held_row(url: str, run_id: str) -> Iterator[Callable[[], object]]:
    """Hold the run's row; yields a function that tells whether another session waits for it."""
    parts = make_url(url)
    server = {"host": parts.query["host"], "dbname": parts.database, "user": "shardtune"}
    waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
    with psycopg.connect(**server) as holder, psycopg.connect(**server, autocommit=True) as looker:
        holder.execute("SELECT 1 FROM runs WHERE id = %s FOR UPDATE", (run_id,))
        yield lambda: looker.execute(waits).fetchone()


class Scene:
    """A study whose trials two workers run, one at each replica; the first replica is to be lost."""

    def __init__(self, url: str, lost: Replica, other: Replica, stack: ExitStack) -> None:
        self.url, self.lost, self.other = url, lost, other
        with httpx.Client(base_url=other.url, timeout=60, trust_env=False) as local:
            # In a network namespace a replica cannot tell who connects, and serves nobody without a key.
            headers = bearer(make_key(local, "admin"))
        clients = [
            httpx.Client(base_url=item.url, timeout=60, trust_env=False, headers=headers) for item in (lost, other)
        ]
        self.at_lost, self.at_other = (stack.enter_context(client) for client in clients)
        self.theirs = SimulatedWorker(self.at_lost, "theirs", quietly).register()
        self.ours = SimulatedWorker(self.at_other, "ours", quietly).register()
        self.study_id = self.at_other.post("/v1/studies", json=SPEC).json()["study_id"]
        self.theirs.report(self.theirs.lease(), MODEL_SUMMARY).raise_for_status()
        self.their_lease, self.our_lease = self.theirs.lease(), self.ours.lease()

    def lose(self, how: Callable[[], None]) -> threading.Thread:
        """Have the replica lost with the study in its hands."""
        report = threading.Thread(target=self._report)
        with held_row(self.url, self.their_lease.run_id) as is_waited_for:
            report.start()
            until(is_waited_for, "the report waits for its run")
            how()
        return report

    def goes_on(self) -> None:
        """The other replica's worker reports and gets another run of the same study, its lease renewed all along."""

        def reported() -> bool:
            assert self.ours.heartbeat(self.our_lease)["action"] == "continue"
            answer = self.ours.report(self.our_lease, measurement(1000))
            assert answer.is_success or answer.json()["code"] == "database_busy", answer.text
            return answer.is_success

        until(reported, "a report")
        until(lambda: self.ours.lease(), "a lease")

    def ends_well(self) -> None:
        """Messages that the lost replica held are delivered again, and count once; the study ends."""
        self.theirs.client = self.at_other
        answer = self.theirs.report(self.their_lease, measurement(900))
        assert answer.status_code in (200, 409), answer.text
        for worker in (self.theirs, self.ours):
            worker.register()
        until(lambda: self._work() == "complete", "the study ends")
        database = Database(self.url)
        assert run_history.faults(database) == []
        database.close()

    def _work(self) -> str:
        for worker in (self.ours, self.theirs):
            worker.work()
        return str(self.at_other.get(f"/v1/studies/{self.study_id}").json()["state"])

    def _report(self) -> None:
        with suppress(httpx.TransportError):
            self.theirs.report(self.their_lease, measurement(900))


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_replica_frozen_in_mid_transaction_stops_nobody(database_url: str, tmp_path: Path):
    with ExitStack() as stack:
        lost, other = (stack.enter_context(Replica(database_url, tmp_path / f"{n}.log", **SETTINGS)) for n in range(2))
        for replica in (lost, other):
            replica.wait_until_ready()
        scene = Scene(database_url, lost, other, stack)
        report = scene.lose(lambda: lost.send(signal.SIGSTOP))
        scene.goes_on()
        # What it still writes after its thaw is written by nobody: the server has ended its session.
        lost.send(signal.SIGCONT)
        report.join(timeout=GOES_ON_S)
        scene.ends_well()


@pytest.fixture
def network() -> Iterator[CutNetwork]:
    if not CutNetwork.is_possible():
        missing("the right to make network namespaces")
    with CutNetwork() as network:
        yield network


def test_a_replica_cut_off_without_a_word_stops_nobody_and_comes_back(network: CutNetwork, tmp_path: Path):
    with PostgresServer(address=HERE) as server, ExitStack() as stack:
        url = server.url.format(name="postgres")
        upgrade(url)
        there = f"postgresql://shardtune@{HERE}/postgres"
        lost = stack.enter_context(Replica(there, tmp_path / "lost.log", within=network.within, **SETTINGS))
        other = stack.enter_context(Replica(url, tmp_path / "other.log", **SETTINGS))
        for replica in (lost, other):
            replica.wait_until_ready()
        scene = Scene(url, lost, other, stack)
        report = scene.lose(network.cut)
        scene.goes_on()
        assert scene.at_lost.get("/readyz", timeout=GOES_ON_S).status_code == 503
        network.mend()
        report.join(timeout=GOES_ON_S)
        until(lambda: scene.at_lost.get("/readyz").is_success, "it comes back")
        scene.ends_well()
