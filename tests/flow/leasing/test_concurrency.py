"""Many workers asking at once, from threads, on both databases."""

import time

import pytest

from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.trials.leases import LeaseRequest
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.limits import DatabaseLimits
from shardtune.db.queries import leases
from shardtune.db.session import Database
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.flow.helpers.immediate_claim import grant
from tests.support.service.scenarios import THREE_BACKENDS, create, in_threads
from tests.support.service.simulated_worker import CLUSTER, MODEL_SUMMARY, SPEC, SimulatedWorker, measurement

SPEC_24 = SPEC | {"budget": {"max_trials": 24}, "cluster": CLUSTER.model_dump()}


def open_study(client, count):
    """A profiled study and its workers."""
    workers = [SimulatedWorker(client, name=f"sim-{i}").register() for i in range(count)]
    study_id = client.post("/v1/studies", json=SPEC_24).json()["study_id"]
    workers[0].report(workers[0].lease(), MODEL_SUMMARY).raise_for_status()
    return study_id, workers


def test_concurrent_leases_are_distinct_trials(client):
    study_id, workers = open_study(client, 6)
    got = []
    in_threads(lambda worker: got.append(worker.lease()), workers)
    assert sorted(lease.trial_number for lease in got) == list(range(6))
    assert len({lease.task.config.content_key() for lease in got}) == 6
    assert client.get(f"/v1/studies/{study_id}").json()["trials"] == {"running": 6}


def test_concurrent_requests_of_one_session_get_one_lease(client):
    _, workers = open_study(client, 1)
    got = []
    in_threads(lambda worker: got.append(worker.lease()), workers * 5)
    assert {(lease.run_id, lease.attempt) for lease in got} == {(got[0].run_id, 1)}


class Counting(PlannerCache):
    """Counts the samples of one replica, each of which takes long enough to be overtaken."""

    def __init__(self):
        super().__init__()
        self.samples = 0

    def space(self, study_id, build):
        self.samples += 1
        time.sleep(0.05)
        return super().space(study_id, build)


def test_two_replicas_never_give_out_the_same_and_sample_once_for_each_trial(client, database_url, clock):
    _, workers = open_study(client, 6)
    settings = Settings(database_url=database_url)
    replicas = [Context(Database(database_url), settings, clock, planner_cache=Counting()) for _ in range(2)]
    got = []

    def ask(index):
        request = LeaseRequest(protocol_version=PROTOCOL_VERSION, session=workers[index].session)
        got.append(grant(replicas[index % 2], request))

    in_threads(ask, range(6))
    assert len({lease.task.config.content_key() for lease in got}) == 6
    if not replicas[0].db.is_sqlite:
        assert sum(replica.planner_cache.samples for replica in replicas) == 6
    for replica in replicas:
        replica.db.close()


class Overtaken(PlannerCache):
    """Something happens while the first sample is drawn."""

    def __init__(self, meanwhile):
        super().__init__()
        self.samples, self._meanwhile = 0, meanwhile

    def space(self, study_id, build):
        self.samples += 1
        if self.samples == 1:
            self._meanwhile()
        return super().space(study_id, build)


@pytest.fixture
def overtaken(client, database_url, clock):
    """Claim of one worker while another's run ends, and how often the sampler was asked for it."""
    database = Database(database_url)

    def ask(**budget):
        asking, ending = (SimulatedWorker(client, name=name).register() for name in ("asking", "ending"))
        client.post("/v1/studies", json=SPEC_24 | {"budget": {"max_trials": 24} | budget}).raise_for_status()
        ending.do(ending.lease())
        running = ending.lease()
        planner_cache = Overtaken(lambda: ending.do(running))
        context = Context(database, Settings(database_url=database_url), clock, planner_cache=planner_cache)
        lease = grant(context, LeaseRequest(protocol_version=PROTOCOL_VERSION, session=asking.session))
        return lease, planner_cache.samples

    yield ask
    database.close()


def test_a_trial_that_was_planned_while_a_run_ended_is_made_without_another_sample(overtaken):
    lease, samples = overtaken()
    assert (lease.trial_number, samples) == (1, 1)


def test_a_trial_is_not_made_where_the_run_that_ended_meanwhile_used_up_the_budget(overtaken):
    lease, samples = overtaken(max_gpu_seconds=10)
    assert samples == 1 and (lease is None or lease.trial_number == 0)


def test_who_began_a_block_finds_its_next_run_whatever_others_were_told(client):
    mine, other = (SimulatedWorker(client, name=name).register() for name in ("mine", "other"))
    create(client, **THREE_BACKENDS)
    for _ in range(1 + 8 + 1):
        mine.do(mine.lease())
    assert other.lease() is None, "the block is compared on one worker's devices"
    # Held open, it looks only where the answer to its kind does not hold for it.
    lease = mine.lease(wait_s=0.01)
    assert lease is not None and lease.trial_number is not None
    mine.do(lease)


def test_a_block_whose_worker_is_drained_goes_to_another(client):
    """A drained worker still asks for work, so that it counts as live: its block waited for it without end."""
    mine, other = (SimulatedWorker(client, name=name).register() for name in ("mine", "other"))
    study_id = create(client, **THREE_BACKENDS)
    for _ in range(1 + 8 + 1):
        mine.do(mine.lease())
    assert other.lease() is None, "the block is compared on one worker's devices"
    drained = next(row for row in client.get("/v1/workers").json()["workers"] if row["name"] == "mine")
    client.post(f"/v1/workers/{drained['worker_id']}:drain").raise_for_status()
    assert mine.lease() is None
    other.work(400)
    assert client.get(f"/v1/studies/{study_id}").json()["state"] == "complete"


@pytest.mark.parametrize("is_noted", [True, False], ids=["this replica took the report", "another did"])
def test_who_began_a_block_ends_it_before_it_begins_anything_else(client, is_noted):
    mine, context = SimulatedWorker(client).register(), client.app.state.context
    older = create(client, **THREE_BACKENDS)
    client.post(f"/v1/studies/{older}:pause").raise_for_status()
    younger = create(client, **THREE_BACKENDS, seed=1)
    for _ in range(1 + 8 + 1):
        mine.do(mine.lease())
    client.post(f"/v1/studies/{older}:resume").raise_for_status()
    with context.db.read() as session:
        assert leases.open_states(session, [younger]) == {younger: {TrialState.WAITING}}, "made with the end before it"
    if not is_noted:
        context.planner_cache.take_begun_block(mine.session)
    assert mine.lease().study_id == younger


@pytest.mark.postgres
def test_a_name_is_held_by_one_replica_and_free_when_that_one_is_gone(empty_postgres_url):
    database, other = Database(empty_postgres_url), Database(empty_postgres_url)
    with (
        database.advisory_lock("ask", 0.1) as first,
        other.advisory_lock("ask", 0.1) as second,
        other.advisory_lock("ask more", 0.1) as third,
    ):
        assert (first, second, third) == (True, False, True)
    with database.advisory_lock("ask", 0.1), other.engine.connect() as connection:
        reserved = "SELECT pid FROM pg_locks JOIN pg_database ON oid = database WHERE locktype = 'advisory'"
        connection.exec_driver_sql(
            f"SELECT pg_terminate_backend(pid) FROM ({reserved} AND datname = current_database()) AS holders"
        )
        with other.advisory_lock("ask", 5) as taken_over:
            assert taken_over
    database.close()
    other.close()


@pytest.mark.postgres
def test_a_connection_keeps_the_statements_that_it_has_prepared_whether_it_got_a_name_or_not(empty_postgres_url):
    database, other = Database(empty_postgres_url), Database(empty_postgres_url, DatabaseLimits(connections=1))
    with database.advisory_lock("held", 0.1):
        for _ in range(10):
            with other.advisory_lock("free", 0.1) as got:
                assert got
            other.clock.read()
        with other.advisory_lock("held", 0.02) as got:
            assert not got
        with other.engine.connect() as connection:
            kept = connection.exec_driver_sql("SELECT statement FROM pg_prepared_statements").scalars().all()
    assert any("pg_try_advisory_xact_lock" in statement for statement in kept)
    assert any("clock_timestamp" in statement for statement in kept)
    database.close()
    other.close()


def test_concurrent_reports_all_count(client):
    study_id, workers = open_study(client, 4)
    reserved = [(worker, worker.lease()) for worker in workers]
    in_threads(lambda pair: pair[0].report(pair[1], measurement(1000)).raise_for_status(), reserved)
    study = client.get(f"/v1/studies/{study_id}").json()
    assert study["trials"] == {"complete": 4} and study["gpu_seconds"] == 30.0
