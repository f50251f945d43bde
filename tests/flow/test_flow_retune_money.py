"""What retuning may spend: a daily budget that 50 stale recommendations keep to, windows, worth, and users' studies first."""

from collections import defaultdict

import pytest
from local_client import local_client
from simulated_worker import CLUSTER, SPEC, SimulatedWorker
from sqlalchemy import select
from test_flow_best import best, tune
from test_flow_retunes import ask

from api_schemas.retunes import RetuneOutcome, RetunePolicy
from api_schemas.studies import StudySpec, StudyState
from db import keys, retunes, studies
from db.best_rows import BestRow
from db.retune_rows import RetuneRow
from db.rows import AttemptRow
from db.session import Database
from service import retune_queue, retune_steps
from service import studies as study_rules
from service.app import create_app
from service.context import Context
from service.retunes import finish
from service.settings import Settings

A_DAY = 200.0
QUIET = {"sweep_s": 3600, "fingerprint_check_s": 3600, "canary_check_s": 3600, "retune_every_s": 3600}
"""The test takes the steps of the loops itself."""
SHORT = StudySpec.model_validate(SPEC | {"cluster": CLUSTER.model_dump(), "budget": {"max_trials": 2}})


def start(context, retune):
    """A study of the case that runs a few trials: what a challenge costs, without its rules."""
    study_id = f"study-{retune.id}"
    with context.db.read() as session:
        if studies.get(session, study_id) is not None:
            return study_id
    study_rules.create(context, SHORT, study_id=study_id)
    with context.db.write() as session:
        studies.lock(session, study_id).purpose = "retune"
    return study_id


def advance(context, retune):
    with context.db.write() as session:
        study = studies.lock(session, retune.challenge_study_id)
        row = retunes.lock(session, retune.id)
        if study.state is StudyState.COMPLETE:
            finish(context, session, row, RetuneOutcome.KEPT, "kept")


@pytest.fixture
def service(database_url, clock):
    """A service whose fleet may use 200 GPU-seconds a day, with one recommendation and its worker."""
    settings = Settings(database_url=database_url, **QUIET, retune_gpu_seconds_per_day=A_DAY)
    context = Context(Database(database_url), settings, clock)
    with local_client(create_app(context=context)) as client:
        tune(client)
        clock.turn(86_400)
        yield client, context, SimulatedWorker(client).register()


def make_stale(context, key, count):
    """Many cases of one answer, each used less than the one before, in an order that says nothing."""
    made = [f"{index:032x}" for index in range(count)]
    with context.db.write() as session:
        known = session.get(BestRow, ("default", key))
        copied = {c.key: getattr(known, c.key) for c in BestRow.__table__.columns}
        for index, name in enumerate(made):
            session.add(BestRow(**copied | {"study_key": name, "shape_key": name, "uses": (index * 7) % count}))
    for name in made:
        ask(context, name, changed_fields=("driver",))
    return sorted(made, key=lambda name: -((made.index(name) * 7) % count))


def run_a_day(context, worker):
    worker.register()
    while retune_queue.start_due(context, start) + worker.work(500):
        retune_steps.drive(context, start, advance)


def test_fifty_stale_recommendations_keep_to_the_budget_of_each_day_most_used_first(service, clock):
    client, context, worker = service
    by_use = make_stale(context, best(client)["study_key"], 50)
    for _ in range(6):
        run_a_day(context, worker)
        clock.turn(86_400)
    with context.db.read() as session:
        begun = session.scalars(select(RetuneRow.study_key).where(RetuneRow.started_at.is_not(None))).all()
        assert 6 <= len(begun) < 20 and set(begun) == set(by_use[: len(begun)])
        spent = defaultdict(float)
        first_day = session.scalars(select(RetuneRow.created_at)).first().date()
        for attempt in session.scalars(select(AttemptRow)):
            if attempt.finished_at.date() >= first_day:
                spent[attempt.finished_at.date()] += attempt.gpu_seconds
        assert len(spent) == 6 and all(A_DAY / 2 < used <= A_DAY for used in spent.values())
        waiting = session.scalars(select(RetuneRow.reason).where(RetuneRow.reason.like("waits for the next day%")))
        assert "the fleet may use 200 GPU-seconds a day for retuning (UTC)" in waiting.first()


def test_a_project_has_a_limit_of_its_own(service, clock):
    client, context, _worker = service
    with context.db.write() as session:
        keys.lock_project(session, "default").retuning = RetunePolicy(gpu_seconds_per_day=3)
    retune_id = ask(context, best(client)["study_key"])
    assert retune_queue.start_due(context, start) == 0
    found = client.get(f"/v1/retunes/{retune_id}").json()
    assert found["outcome"] == "skipped" and "project default may use 3 GPU-seconds a day" in found["reason"]


def manual(client, **changes):
    spec = {"name": "by hand", "trigger": "manual"} | changes
    made = client.post("/v1/schedules", json=spec).json()
    client.post(f"/v1/schedules/{made['schedule_id']}:run").raise_for_status()
    (found,) = client.get("/v1/retunes", params={"schedule_id": made["schedule_id"]}).json()["retunes"]
    return found["retune_id"]


def test_retunes_start_in_their_windows(service, clock):
    client, context, _ = service
    clock.turn(12 * 3600)
    retune_id = manual(client, windows=["22:00-06:00"], timezone="Europe/Berlin")
    assert retune_queue.start_due(context, start) == 0
    assert client.get(f"/v1/retunes/{retune_id}").json()["reason"] == (
        "waits for a window of its schedule: 22:00-06:00 (Europe/Berlin)"
    )
    clock.turn(9 * 3600)
    SimulatedWorker(client).register()
    assert retune_queue.start_due(context, start) == 1


@pytest.mark.parametrize(
    ("planned", "gain", "outcome"), [(0.001, None, "skipped"), (0.1, 0.01, "skipped"), (10, 0.01, None)]
)
def test_what_cannot_earn_its_cost_is_skipped_in_words(service, planned, gain, outcome):
    client, context, _ = service
    spec = {"name": "worth", "trigger": "fingerprint", "planned_gpu_hours": planned, "likely_gain": gain}
    client.post("/v1/schedules", json=spec).raise_for_status()
    retune_id = ask(context, best(client)["study_key"])
    retune_queue.start_due(context, start)
    found = client.get(f"/v1/retunes/{retune_id}").json()
    assert found["outcome"] == outcome and found["planned_gpu_seconds"] == planned * 3600
    if outcome == "skipped":
        assert "not worth it: it is likely to cost" in found["reason"] and "GPU-seconds" in found["reason"]


def test_a_retune_that_has_used_what_its_schedule_allows_is_stopped(service):
    client, context, worker = service
    retune_id = manual(client, max_gpu_seconds=20)
    assert retune_queue.start_due(context, start) == 1
    for _ in range(4):
        worker.do(worker.lease())
    retune_steps.drive(context, start, advance)
    found = client.get(f"/v1/retunes/{retune_id}").json()
    assert found["outcome"] == "inconclusive" and "24 of the 20 GPU-seconds its schedule allows" in found["reason"]
    assert client.get(f"/v1/studies/{found['challenge_study_id']}").json()["state"] == "cancelled"


@pytest.fixture
def background(service):
    """A retune's study, begun."""
    client, context, worker = service
    ask(context, best(client)["study_key"])
    assert retune_queue.start_due(context, start) == 1
    return client, context, worker


def test_a_users_study_takes_the_worker_after_the_present_run(background):
    client, _, worker = background
    lease = worker.lease()
    study_id = client.post("/v1/studies", json=SPEC).json()["study_id"]
    assert worker.heartbeat(lease)["action"] == "continue"
    worker.do(lease)
    taken = [worker.lease()]
    while taken[-1] is not None and len(taken) < 200:
        worker.do(taken[-1])
        taken.append(worker.lease())
    order = [lease.study_id == study_id for lease in taken[:-1]]
    assert order == sorted(order, reverse=True) and True in order and False in order


def test_where_configured_a_retunes_run_gives_its_worker_up_at_once(database_url, clock):
    settings = Settings(database_url=database_url, **QUIET, retune_yields="at_once")
    context = Context(Database(database_url), settings, clock)
    with local_client(create_app(context=context)) as client:
        tune(client)
        worker = SimulatedWorker(client).register()
        ask(context, best(client)["study_key"])
        retune_queue.start_due(context, start)
        lease = worker.lease()
        assert worker.heartbeat(lease)["action"] == "continue"
        clock.turn(5)
        study_id = client.post("/v1/studies", json=SPEC).json()["study_id"]
        assert worker.heartbeat(lease) | {"lease_s": 0} == {
            "action": "stop",
            "reason": "lease lost: the attempt has ended (released)",
            "lease_s": 0,
            "is_draining": False,
        }
        assert worker.lease().study_id == study_id


def test_uses_are_counted_without_a_write_by_the_reader(service, clock):
    client, context, _ = service
    key = best(client)["study_key"]
    for _ in range(3):
        best(client, study_key=key)
    counts = context.uses.take()
    assert counts == {("default", key): 4}
    assert context.uses.take() == {}
