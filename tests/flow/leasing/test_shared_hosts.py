"""Several workers on one host: searches go side by side, what decides has the host alone, and everybody gets a turn."""

import pytest
from sqlalchemy import select

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.machines.host_partition import HostPartition
from shardtune.api_schemas.machines.workers import Worker
from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.trials.leases import TASK_KINDS, LeaseRequest
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.session import Database
from shardtune.db.tables.trials import AttemptRow, RunRow
from shardtune.service.leasing.host_exclusivity import needs_exclusive_host
from shardtune.service.pages.views.conditions import surroundings
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from shardtune.service.wording import host_words
from tests.flow.helpers.immediate_claim import grant
from tests.support.service.scenarios import create, in_threads
from tests.support.service.simulated_worker import CLUSTER, MODEL_SUMMARY, SPEC, SimulatedWorker

HOST = "0c5b1a7e94d2f386"
ONE_RANK = CLUSTER.model_copy(update={"gpus_per_node": 1})
OF_ONE, OF_TWO = {"cluster": ONE_RANK.model_dump()}, {"cluster": CLUSTER.model_dump()}
SHORT = {"budget": {"max_trials": 4, "max_pairs": 7}}


def single(client, core, **options):
    """A worker of one core of the host."""
    partition = HostPartition(host=HOST, devices=(f"cpu{core}",), fraction=0.5)
    return SimulatedWorker(
        client, name=f"one-{core}", cluster=ONE_RANK, host_partition=partition, task_kinds=TASK_KINDS, **options
    ).register()


def double(client):
    """The worker of both."""
    partition = HostPartition(host=HOST, devices=("cpu0", "cpu1"), shared_link_devices=("cpu0", "cpu1"), least_ranks=2)
    return SimulatedWorker(client, name="both", host_partition=partition, task_kinds=TASK_KINDS).register()


def profiled(client, worker, **changes):
    """A study whose search can begin."""
    study_id = create(client, **changes)
    worker.report(worker.lease(), MODEL_SUMMARY).raise_for_status()
    return study_id


def finish_all(clock, workers, most=400):
    """Have them work until there is nothing to do; what was held beside each other, as whether each was alone."""
    reserved, beside = {}, []
    for _ in range(most):
        for worker in workers:
            if worker not in reserved and (lease := worker.lease()) is not None:
                reserved[worker] = lease
        if not reserved:
            return beside
        beside.append([lease.is_exclusive for lease in reserved.values()])
        clock.turn(1)
        first = next(iter(reserved))
        first.do(reserved.pop(first))
    raise AssertionError("still at work")


def test_searches_go_side_by_side_and_what_decides_has_the_host_alone(client, clock):
    workers = [single(client, core) for core in (0, 1)]
    studies = [create(client, **SHORT, **OF_ONE) for _ in workers]
    beside = finish_all(clock, workers)
    assert all(len(reserved) == 1 for reserved in beside if any(reserved)), "something ran beside a run that decides"
    assert [False, False] in beside and [True] in beside
    assert {client.get(f"/v1/studies/{study_id}").json()["state"] for study_id in studies} == {"complete"}
    with client.app.state.context.db.read() as session:
        recorded = session.execute(select(AttemptRow, RunRow).join(RunRow, RunRow.id == AttemptRow.run_id)).all()
    assert {run.purpose for _, run in recorded} >= {RunPurpose.SEARCH, RunPurpose.VALIDATION, RunPurpose.RESUME_CHECK}
    for attempt, run in recorded:
        others = sum(
            item.started_at < attempt.finished_at and item.finished_at > attempt.started_at
            for item, _ in recorded
            if item.worker_id != attempt.worker_id
        )
        if needs_exclusive_host(run.purpose, None):
            assert others == 0
        if run.measurement is not None:
            conditions = run.measurement.conditions
            assert (conditions.co_tenants if conditions else 0) == min(others, 1)


@pytest.mark.wide_on_postgres
def test_while_a_validation_run_waits_for_the_host_no_search_begins_there(client, clock):
    mine, other = single(client, 0), single(client, 1)
    first = create(client, **SHORT, **OF_ONE)
    for _ in range(1 + 3):
        mine.do(mine.lease())
    clock.turn(1)
    create(client, **OF_ONE)
    last, busy = mine.lease(), other.lease()
    assert (last.study_id, busy.study_id == first, busy.is_exclusive) == (first, False, False)
    mine.do(last)
    assert mine.lease() is None, "a validation run begins where nothing runs"
    clock.turn(1)
    other.do(busy)
    assert other.lease() is None, "the validation run is first"
    lease = mine.lease()
    assert lease.study_id == first and lease.is_exclusive
    assert other.lease() is None
    mine.do(lease)
    assert other.lease() is None, "the next run of the pair follows at once"
    assert mine.lease().is_exclusive


@pytest.mark.wide_on_postgres
def test_who_was_to_be_alone_keeps_no_place_once_it_is_gone(client, clock):
    mine, other = single(client, 0), single(client, 1)
    create(client, **SHORT, **OF_ONE)
    for _ in range(1 + 4 + 1):
        mine.do(mine.lease())
    clock.turn(1)
    second = create(client, **OF_ONE)
    assert other.lease() is None
    clock.turn(60)
    assert other.lease().study_id == second


def test_overlapping_device_sets_exclude_each_other(client, clock):
    zero, single_single, both = single(client, 0), single(client, 1), double(client)
    small, large = profiled(client, zero, **OF_ONE), profiled(client, both, **OF_TWO)
    begun = zero.lease(), single_single.lease()
    assert {lease.study_id for lease in begun} == {small}
    assert both.lease() is None, "its devices are taken"
    clock.turn(1)
    zero.do(begun[0])
    assert zero.lease() is None, "who needs both devices would never find them free"
    single_single.do(begun[1])
    lease = both.lease()
    assert lease.study_id == large
    clock.turn(1)
    assert (zero.lease(), single_single.lease()) == (None, None)
    both.do(lease)
    assert both.lease() is None, "the others have waited for longer"
    assert zero.lease().study_id == single_single.lease().study_id == small


@pytest.mark.wide_on_postgres
def test_a_small_study_is_left_to_a_small_worker(client):
    both = double(client)
    waiting = client.post("/v1/studies", json=SPEC | OF_ONE)
    assert waiting.status_code == 422 and waiting.json()["code"] == "no_worker"
    single_single = single(client, 1)
    study_id = create(client, **OF_ONE)
    assert both.lease() is None
    assert single_single.lease().study_id == study_id
    assert client.get(f"/v1/studies/{study_id}").json()["reason"] is None


@pytest.mark.wide_on_postgres
def test_workers_elsewhere_do_not_wait(client):
    mine = single(client, 0)
    create(client, **SHORT, **OF_ONE)
    for _ in range(1 + 4):
        mine.do(mine.lease())
    assert mine.lease().is_exclusive
    for _ in range(2):
        create(client, **OF_ONE)
    partition = HostPartition(host="1" * 16, devices=("cpu0",))
    assert (
        SimulatedWorker(client, name="elsewhere", cluster=ONE_RANK, host_partition=partition).register().lease()
        is not None
    )
    assert SimulatedWorker(client, name="whole", cluster=ONE_RANK).register().lease() is not None


@pytest.mark.parametrize("replicas", [2])
def test_replicas_that_are_asked_at_once_never_give_out_what_meets(client, database_url, clock, replicas):
    workers = single(client, 0), single(client, 1), double(client)
    zero, _, both = workers
    small, large = profiled(client, zero, **OF_ONE), profiled(client, both, **OF_TWO)
    settings = Settings(database_url=database_url)
    contexts = [Context(Database(database_url), settings, clock) for _ in range(replicas)]
    studies = set()
    for turn in range(6):
        got = {}

        def ask(index, got=got, turn=turn):
            request = LeaseRequest(protocol_version=PROTOCOL_VERSION, session=workers[index].session)
            got[index] = grant(contexts[(index + turn) % replicas], request)

        in_threads(ask, range(len(workers)))
        reserved = {index: lease for index, lease in got.items() if lease is not None}
        assert reserved and (2 not in reserved or len(reserved) == 1)
        studies |= {lease.study_id for lease in reserved.values()}
        clock.turn(1)
        for index, lease in reserved.items():
            workers[index].do(lease)
    assert studies == {small, large}
    for context in contexts:
        context.db.close()


def test_a_worker_is_listed_with_its_host_and_its_devices(quick_client):
    single(quick_client, 1)
    (listed,) = quick_client.get("/v1/workers").json()["workers"]
    assert host_words.hosts(Worker.model_validate(listed).inventory) == f"cpu1 of {HOST}"
    assert f"cpu1 of {HOST}" in quick_client.get("/workers").text
    ((_, reported), *_) = surroundings(Conditions(co_tenants=2))
    assert reported.startswith("2 other workers used other devices of its host")
