"""Many waiting requests of one project delay no other project's."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import psycopg
import pytest
from sqlalchemy import make_url

from shardtune.service.process.work_signal import CLAIM_THREADS
from tests.flow.helpers.uvicorn_thread import Served, served
from tests.support.service.postgres_server import copy_of
from tests.support.service.scenarios import bearer, make_key
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker

pytestmark = pytest.mark.postgres

CROWD = 50
"""More than the threads and the connections of a process."""
PATIENCE_S = 20


class Scene:
    """A service with two projects, of which one has a crowd of clients. It waits for rows as long as it must."""

    def __init__(self, service: Served, url: str) -> None:
        self.service, self._url = service, url
        admin = bearer(make_key(service.client, "admin"))
        self.admin = admin
        self.crowded, self.other = (
            bearer(make_key(service.client, "admin", project=name, **admin)) for name in ("crowded", "other")
        )

    def client(self, headers: dict[str, str]) -> httpx.Client:
        address = f"http://127.0.0.1:{self.service.port}"
        return httpx.Client(base_url=address, headers=headers, timeout=PATIENCE_S, trust_env=False)

    def study(self, client: httpx.Client) -> str:
        return str(
            client.post("/v1/studies", json=SPEC | {"cluster": CLUSTER.model_dump()})
            .raise_for_status()
            .json()["study_id"]
        )

    def _connect(self) -> psycopg.Connection[tuple[int]]:
        parts = make_url(self._url)
        return psycopg.connect(host=parts.query["host"], dbname=parts.database, user="shardtune")

    def _waiting(self) -> int:
        with self._connect() as looker:
            (actual,) = looker.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchall()
            return actual[0]

    @contextmanager
    def hold_lock(self, statement: str, *values: str) -> Iterator[None]:
        """Hold rows that somebody else wants."""
        with self._connect() as holder:
            assert holder.execute(f"{statement} FOR UPDATE", values).fetchall()
            yield
            holder.rollback()

    @contextmanager
    def crowd(self, ask: Callable[[int], object], size: int = CROWD) -> Iterator[None]:
        """Many at once, none of which may have been answered at the end."""
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(size)]
        for thread in threads:
            thread.start()
        # Who had most of the time has one place, which is taken then; the rest of the crowd has no turn.
        while not self._waiting():
            time.sleep(0.02)
        yield
        assert all(thread.is_alive() for thread in threads), "they wait for the row"


@pytest.fixture(scope="module")
def scene(postgres_server: str, postgres_template: str) -> Iterator[Scene]:
    url = copy_of(postgres_server, postgres_template, "turns")
    with served(url) as service:
        yield Scene(service, url)


@pytest.mark.parametrize("unread_body", [b"", b"x"])
def test_requests_that_wait_for_a_row_hold_up_their_own_project_only(scene: Scene, unread_body: bytes) -> None:
    with scene.client(scene.crowded) as crowded, scene.client(scene.other) as other:
        SimulatedWorker(crowded).register()
        study_id = scene.study(crowded)

        def pause(_: int) -> None:
            url = f"{crowded.base_url}/v1/studies/{study_id}:pause"
            httpx.post(url, content=unread_body, headers=scene.crowded, timeout=60, trust_env=False)

        with scene.hold_lock("SELECT 1 FROM studies WHERE id = %s", study_id), scene.crowd(pause):
            for _ in range(20):
                other.get("/v1/studies").raise_for_status()


def test_questions_for_work_that_wait_for_a_row_hold_up_their_own_project_only(scene: Scene) -> None:
    with scene.client(scene.crowded) as crowded, scene.client(scene.other) as other:
        # Each of another kind: those alike ask one after the other.
        workers = [
            SimulatedWorker(
                crowded, name=f"crowd-{number}", cluster=CLUSTER.model_copy(update={"memory_gib": 4 + number})
            )
            for number in range(2 * CLAIM_THREADS)
        ]
        for worker in workers:
            worker.register()
        mine = SimulatedWorker(other, name="mine").register()
        study_id, _ = scene.study(crowded), scene.study(other)

        def ask(number: int) -> None:
            with scene.client(scene.crowded) as own:
                own.timeout = httpx.Timeout(60)
                workers[number].client = own
                workers[number].lease()

        with scene.hold_lock("SELECT 1 FROM studies WHERE id = %s", study_id), scene.crowd(ask, len(workers)):
            assert mine.lease() is not None


def test_a_key_whose_row_is_held_opens_at_once(scene: Scene) -> None:
    key = make_key(scene.service.client, "admin", project="crowded", **scene.admin)
    with (
        scene.hold_lock("SELECT 1 FROM api_keys WHERE id = %s", key["key"]["key_id"]),
        scene.client(bearer(key)) as client,
    ):
        client.get("/v1/studies").raise_for_status()
