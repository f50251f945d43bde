"""Rows that a worker's key can write are bounded, and deleted when they are old."""

import re
import time

import pytest
from sqlalchemy import func, select, text

from shardtune.api_schemas.machines.hardware import MOST_DETAILS
from shardtune.api_schemas.machines.workers import Worker
from shardtune.db.queries import workers
from shardtune.db.queries.fingerprints import MOST_PERIODS
from shardtune.db.tables.fingerprint_periods import FingerprintPeriodRow
from shardtune.db.tables.fingerprints import FingerprintRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service import retention
from shardtune.service.process.context import Context
from shardtune.service.wording import host_words
from tests.support.service.page_reader import page
from tests.support.service.scenarios import bearer, create, in_threads, make_key
from tests.support.service.simulated_worker import CLUSTER, FINGERPRINT, SPEC, SimulatedWorker

ONE_TRIAL = {"budget": {"max_trials": 1}}


def limited(client, **settings):
    """Context of the same service under other limits."""
    context = client.app.state.context
    client.app.state.context = Context(context.db, context.settings.model_copy(update=settings), context.now)
    return client.app.state.context


def count(context, table):
    with context.db.read() as session:
        return session.scalar(select(func.count()).select_from(table))


def changed(number):
    return FINGERPRINT.model_copy(update={"kernel": f"6.{number}"})


def test_what_a_worker_says_of_itself_is_short(quick_client):
    worker = SimulatedWorker(quick_client)
    for changes, field in (
        ({"details": {"x": "y" * MOST_DETAILS}}, "inventory.details"),
        ({"causal_lm_types": ["x"] * 3000}, "inventory.causal_lm_types"),
        ({"task_kinds": ["x" * 200]}, "inventory.task_kinds.0"),
        ({"causal_lm_types": ["llama\x1b[2J"]}, "inventory.causal_lm_types.0"),
    ):
        inventory = worker.inventory.model_dump(mode="json") | changes
        answer = worker.post("/v1/workers", {"name": "sim", "inventory": inventory})
        assert answer.status_code == 422 and field in [error["field"] for error in answer.json()["errors"]]


def test_names_of_hosts_are_words_on_a_line(quick_client):
    hosts = [{"host": "n0\x1b[2J\nw9  live", "interface": "eth0\r"}, "n1\x9b1A"]
    cluster = CLUSTER.model_copy(update={"nodes": 2})
    SimulatedWorker(quick_client, cluster=cluster, details={"hosts": hosts}).register()
    (worker,) = quick_client.get("/v1/workers").json()["workers"]
    shown = host_words.hosts(Worker.model_validate(worker).inventory)
    assert shown.isprintable() and shown.startswith("n0") and worker["inventory"]["details"]["hosts"] != hosts


def test_what_another_project_s_workers_say_is_not_read_for_a_study(quick_client):
    admin = bearer(make_key(quick_client, "admin"))
    theirs, mine = (bearer(make_key(quick_client, "admin", project=name, **admin)) for name in ("theirs", "mine"))
    for headers in (theirs, mine):
        quick_client.headers |= headers
        SimulatedWorker(quick_client).register()
    with quick_client.app.state.context.db.write() as session:
        # As no release could read it.
        session.execute(text("UPDATE workers SET inventory = '{}', offer = '{}' WHERE project_id = 'theirs'"))
    create(quick_client)


def test_what_workers_say_at_length_is_not_read_to_find_one_for_a_study(quick_client):
    SimulatedWorker(quick_client).register()
    with quick_client.app.state.context.db.write() as session:
        # As no release could read it.
        session.execute(text("UPDATE workers SET inventory = '{}'"))
    answer = quick_client.post("/v1/studies", json=SPEC | {"cluster": "8xh100"})
    assert answer.status_code == 422 and answer.json()["code"] == "no_worker", answer.text


def test_a_project_has_so_many_workers(quick_client):
    limited(quick_client, max_workers=2)
    admin = bearer(make_key(quick_client, "admin"))
    quick_client.headers |= bearer(make_key(quick_client, "workers:lease", project="a", **admin))
    for name in ("one", "two", "one"):
        SimulatedWorker(quick_client, name=name).register()
    third = SimulatedWorker(quick_client, name="three")
    answer = third.post("/v1/workers", {"name": "three", "inventory": third.inventory.model_dump(mode="json")})
    assert (answer.status_code, answer.json()["code"]) == (409, "too_many_workers")
    quick_client.headers |= bearer(make_key(quick_client, "workers:lease", project="b", **admin))
    SimulatedWorker(quick_client, name="of-b").register()


def test_no_more_workers_than_allowed_register_at_once(client, monkeypatch):
    """On Postgres, requests that counted before the other one's worker was stored exceeded the limit."""
    count_workers = workers.count

    def count_slowly(session, project_id):
        number = count_workers(session, project_id)
        time.sleep(0.3)
        return number

    monkeypatch.setattr(workers, "count", count_slowly)
    limited(client, max_workers=1)
    statuses = []
    in_threads(
        lambda name: statuses.append(SimulatedWorker(client, name=name).introduce().status_code),
        ["one", "two", "three"],
    )
    assert sorted(status == 409 for status in statuses) == [False, True, True], statuses


@pytest.mark.wide_on_postgres
def test_changes_of_a_fingerprint_are_bounded(client, clock):
    context = client.app.state.context
    for number in range(MOST_PERIODS + 10):
        SimulatedWorker(client, fingerprint=changed(number)).register()
        clock.turn(60)
    assert count(context, FingerprintPeriodRow) == MOST_PERIODS
    clock.turn(2 * 3600)
    # The oldest period that is kept names the fingerprint before it, too.
    assert retention.delete_old(context)["fingerprints"] == 9
    assert count(context, FingerprintRow) == MOST_PERIODS + 1


@pytest.mark.wide_on_postgres
def test_a_worker_that_is_gone_is_forgotten_and_known_again_when_it_registers(client, clock):
    context = client.app.state.context
    worker = SimulatedWorker(client).register()
    create(client, **ONE_TRIAL)
    worker.work()
    (row,) = client.get("/v1/workers").json()["workers"]
    address = f"/v1/workers/{row['worker_id']}"
    assert client.delete(address).json()["code"] == "worker_live"
    clock.turn(context.settings.worker_live_s + 1)
    assert (client.delete(address).status_code, client.delete(address).status_code) == (204, 204)
    assert client.get("/v1/workers").json()["workers"] == [] and "sim" not in page(client, "/workers")
    assert worker.post("/v1/leases", {}).json()["code"] == "unknown_session"
    assert SimulatedWorker(client).register().work() == 0
    assert client.get("/v1/workers").json()["workers"][0]["worker_id"] == row["worker_id"]


def test_workers_that_nobody_has_heard_of_are_forgotten_when_they_are_old(client, clock):
    context = client.app.state.context
    busy = SimulatedWorker(client, name="busy").register()
    create(client, **ONE_TRIAL)
    busy.work()
    SimulatedWorker(client, name="idle", fingerprint=changed(99)).register()
    clock.turn((context.settings.keep_workers_days + 1) * 86_400)
    forgotten = retention.delete_old(context)
    assert (forgotten["workers"], forgotten["workers_gone"], forgotten["fingerprints"]) == (1, 1, 1)
    assert client.get("/v1/workers").json()["workers"] == []
    with context.db.read() as session:
        assert session.scalars(select(WorkerRow.name)).all() == ["busy"]


@pytest.mark.wide_on_postgres
def test_the_page_of_workers_shows_some_at_a_time_and_the_live_ones_first(client, clock):
    for number in range(59):
        SimulatedWorker(client, name=f"worker-{number:02}").register()
    clock.turn(1000)
    SimulatedWorker(client, name="zz-live").register()

    def shown(number):
        return re.findall(r"<h2>Worker ([\w-]+)</h2>", page(client, f"/workers?page={number}"))

    assert shown(1) == ["zz-live", *(f"worker-{number:02}" for number in range(49))]
    assert shown(2) == [f"worker-{number}" for number in range(49, 59)]
    assert shown(3) == []


@pytest.mark.parametrize("recorded", ["new names", "changes"])
def test_a_project_registers_so_many_new_things_a_minute(quick_client, clock, recorded):
    limited(quick_client, registrations_per_minute=5)
    admin = bearer(make_key(quick_client, "admin"))
    quick_client.headers |= bearer(make_key(quick_client, "workers:lease", project="a", **admin))

    def register(number):
        name, fingerprint = (f"w{number}", FINGERPRINT) if recorded == "new names" else ("w", changed(number))
        worker = SimulatedWorker(quick_client, name=name, fingerprint=fingerprint)
        return worker.post("/v1/workers", {"name": name, "inventory": worker.inventory.model_dump(mode="json")})

    for number in range(5):
        assert register(number).status_code == 200
    assert register(4).status_code == 200, "what is known costs nothing"
    rejected = register(5)
    assert (rejected.status_code, rejected.json()["code"]) == (429, "quota_registrations")
    clock.turn(int(rejected.headers["retry-after"]))
    assert register(5).status_code == 200
