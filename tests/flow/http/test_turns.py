"""What many requests of one project wait for holds up no other project's."""

import threading

import httpx
import psycopg
import pytest
from sqlalchemy import make_url

from shardtune.db.session import upgrade
from tests.support.scenarios import bearer, make_key
from tests.support.served import served
from tests.support.simulated_worker import SPEC, SimulatedWorker

CROWD = 50
"""More than the threads and the connections of a process."""


@pytest.mark.postgres
def test_requests_that_wait_for_a_row_hold_up_their_own_project_only(empty_postgres_url):
    url = empty_postgres_url
    upgrade(url)
    parts = make_url(url)
    with (
        served(url) as service,
        psycopg.connect(host=parts.query["host"], dbname=parts.database, user="shardtune") as holder,
    ):
        admin = bearer(make_key(service.client, "admin"))
        crowded, other = (
            bearer(make_key(service.client, "admin", project=name, **admin)) for name in ("crowded", "other")
        )
        service.client.headers = crowded
        SimulatedWorker(service.client).register()
        study_id = service.client.post("/v1/studies", json=SPEC).raise_for_status().json()["study_id"]
        holder.execute("SELECT 1 FROM studies WHERE id = %s FOR UPDATE", (study_id,))
        address = f"http://127.0.0.1:{service.port}/v1/studies/{study_id}:pause"

        def pause() -> None:
            httpx.post(address, headers=crowded, timeout=60, trust_env=False)

        crowd = [threading.Thread(target=pause) for _ in range(CROWD)]
        for one in crowd:
            one.start()
        for _ in range(20):
            service.client.get("/v1/studies", headers=other).raise_for_status()
        assert all(one.is_alive() for one in crowd), "they wait for the row"
        holder.rollback()
        for one in crowd:
            one.join()
