"""The service as its users run it: `shardtune serve`, a socket, a database of its own."""

import asyncio
import contextlib
import itertools
import signal
import time

import httpx
import pytest

from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from tests.support.long_run import wide
from tests.support.service.replica import Replica
from tests.support.service.simulated_worker import CLUSTER, MODEL_SUMMARY, SPEC, SimulatedWorker, quietly

PATIENCE_S = 5.0
"""Time limit of a worker's heartbeat: a later response counts as none."""


@pytest.fixture
def serve(tmp_path):
    """Start the service; returns it, and a client once it can work."""
    with contextlib.ExitStack() as stack:

        def start(url, **options):
            log = tmp_path / "service.log"
            replica = stack.enter_context(Replica(url, log, poll_s=0.05, sweep_s=0.05, **options))
            replica.wait_until_ready()
            client = httpx.Client(base_url=replica.url, timeout=30, trust_env=False)
            return replica, stack.enter_context(client)

        yield start


def test_study_over_a_socket_with_a_new_sqlite_file(serve, tmp_path):
    replica, client = serve(f"sqlite:///{tmp_path}/new/shardtune.sqlite3", is_cold=True)
    worker = SimulatedWorker(client, behave=quietly).register()
    study_id = client.post("/v1/studies", json=SPEC).json()["study_id"]
    while (lease := worker.lease(wait_s=1)) is not None:
        worker.do(lease)
    study = client.get(f"/v1/studies/{study_id}").json()
    assert (study["state"], study["result"]["verdict"]) == ("complete", "confirmed")
    assert replica.end() in (0, -15)


def test_waiting_lease_request_is_answered_when_work_appears(serve, tmp_path):
    _, client = serve(f"sqlite:///{tmp_path}/shardtune.sqlite3")
    first = SimulatedWorker(client, name="a").register()
    study_id = client.post("/v1/studies", json=SPEC | {"budget": {"max_trials": 1}}).json()["study_id"]
    assert client.get("/healthz").is_success
    model_summary = first.lease()
    second = SimulatedWorker(client, name="b").register()
    assert second.lease(wait_s=0.2) is None
    first.do(model_summary)
    assert second.lease(wait_s=10).study_id == study_id


@pytest.mark.parametrize(
    "database_url", [wide("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_many_waiting_workers_do_not_starve_a_heartbeat(serve, database_url):
    """200 held requests, woken by every change of a study that four others work on; a worker waits 5 s for an answer."""
    # Beside other programs all runs of the four may take longer than a lease of the default length.
    _, client = serve(database_url, lease_s=120)
    busy = SimulatedWorker(client, name="busy").register()
    client.post("/v1/studies", json=SPEC | {"budget": {"max_trials": 1}}).raise_for_status()
    lease = busy.lease()
    idle = [SimulatedWorker(client, name=f"idle-{i}").register() for i in range(200)]
    larger = CLUSTER.model_copy(update={"gpus_per_node": 4})
    others = [SimulatedWorker(client, f"other-{i}", quietly, cluster=larger).register() for i in range(4)]
    client.post("/v1/studies", json=SPEC | {"cluster": larger.model_dump()}).raise_for_status()

    async def wait_and_beat():
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=client.base_url, timeout=60, trust_env=False, limits=limits) as http:

            def ask(worker):
                body = {"protocol_version": PROTOCOL_VERSION, "session": worker.session, "wait_s": 4}
                return asyncio.create_task(http.post("/v1/leases", json=body))

            requested = [ask(worker) for worker in idle]
            worked = asyncio.gather(*(asyncio.to_thread(worker.work) for worker in others))
            await asyncio.sleep(1)
            beats = []
            while not any(task.done() for task in requested):
                started_s = time.monotonic()
                await asyncio.to_thread(busy.heartbeat, lease)
                beats.append(time.monotonic() - started_s)
            await asyncio.wait(requested)
            return [task.result().status_code for task in requested], beats, await worked

    answers, beats, runs = asyncio.run(wait_and_beat())
    assert set(answers) == {204} and sum(runs) > 8
    assert sorted(beats)[int(len(beats) * 0.99)] < PATIENCE_S
    assert busy.report(lease, MODEL_SUMMARY).json() == {"applied": True}


def test_stream_tells_what_another_process_wrote_and_ends_with_sigterm(serve, tmp_path):
    url = f"sqlite:///{tmp_path}/shardtune.sqlite3"
    replica, client = serve(url)
    _, other_client = serve(url)
    worker = SimulatedWorker(other_client).register()
    study_id = other_client.post("/v1/studies", json=SPEC).json()["study_id"]
    with client.stream("GET", f"/v1/studies/{study_id}/events", headers={"accept": "text/event-stream"}) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("event: ")) == "event: study.created"
        worker.do(worker.lease())
        reported = (line.removeprefix("event: ") for line in lines if line.startswith("event: "))
        assert list(itertools.islice(reported, 3)) == ["run.leased", "run.ended", "study.phase_changed"]
        replica.send(signal.SIGTERM)
        assert list(reported) == []
    assert replica.end() in (0, -15)


@pytest.mark.postgres
def test_postgres_that_is_not_migrated_is_rejected_with_the_command(empty_postgres_url, tmp_path):
    log = tmp_path / "service.log"
    with Replica(empty_postgres_url, log) as replica:
        assert replica.end(None) != 0
    assert "shardtune db upgrade" in log.read_text()
