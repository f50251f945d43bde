"""Limits of what retuning spends: a daily budget that 50 stale recommendations keep to, windows, worth, and users'
studies first."""

from collections import defaultdict

import pytest
import sqlalchemy
from sqlalchemy import select

from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.retuning.retunes import RetuneCause, RetunePolicy
from shardtune.api_schemas.studies.study_state import StudyPurpose
from shardtune.api_schemas.trials.leases import Lease, LeaseRequest
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import keys, leases, retunes, trials
from shardtune.db.session import Database
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.retunes import RetuneRow
from shardtune.db.tables.trials import AttemptRow
from shardtune.service.access import retune_budget
from shardtune.service.best import watch_staleness
from shardtune.service.process.context import Context
from shardtune.service.retuning import challenge_steps, driver, queue
from shardtune.service.settings import Settings
from shardtune.service.studies import demand
from tests.flow.helpers.immediate_claim import grant
from tests.flow.helpers.retuning_lab import CHANGED, ask
from tests.support.long_run import IS_LONG
from tests.support.service.local_client import local_client
from tests.support.service.scenarios import best, fields_of, in_threads
from tests.support.service.simulated_worker import SPEC, SimulatedWorker

pytestmark = pytest.mark.answered
A_DAY = 200.0
DAYS = 6 if IS_LONG else 2
QUIET = {"sweep_s": 3600, "fingerprint_check_s": 3600, "canary_check_s": 3600, "retune_every_s": 3600}
"""The test takes the steps of the loops itself."""


@pytest.fixture
def service(database_url, spare_app, clock):
    """A service whose fleet may use 200 GPU-seconds a day, with one recommendation and its worker."""
    settings = Settings(database_url=database_url, **QUIET, retune_gpu_seconds_per_day=A_DAY)
    spare_app.state.context = context = Context(Database(database_url), settings, clock)
    with local_client(spare_app) as client:
        clock.turn(86_400)
        yield client, context, SimulatedWorker(client).register()


def purpose_of(context, lease):
    with context.db.read() as session:
        return leases.get(session, lease.run_id).purpose


def copied(row, **changes):
    columns = sqlalchemy.inspect(type(row)).column_attrs
    kept = {c.key: getattr(row, c.key) for c in columns if c.key not in {"id", *changes}}
    return type(row)(**kept | changes)


def target_like(session, recorded, index):
    """Another case, as if the same search had been made for another sequence length; its key."""
    recommended, study = recorded.recommended, recorded.recommended.study
    workload = study.spec.workload.model_copy(update={"sequence_length": 66 + 2 * index})
    there = copied(study, id=f"study-{index}", spec=study.spec.model_copy(update={"workload": workload}))
    session.add(there)
    session.flush()
    for trial in trials.of_study(session, study.id):
        session.add(other := copied(trial, study_id=there.id))
        session.flush()
        for run in trial.runs:
            name = f"run-{index}-{run.position}"
            session.add(copied(run, id=name, study_id=there.id, trial_id=other.id, worker_session=None))
            session.flush()
            session.add_all([copied(attempt, run_id=name) for attempt in run.attempts])
    case = TuningTarget(study.spec.model, workload, study.cluster)
    key = case.target_key(study.fingerprint.value)
    answer = recommended.answer.model_copy(update={"workload": workload})
    session.add(copied(recommended, id=f"rec-{index}", target_key=key, study_id=there.id, answer=answer))
    session.flush()
    session.add(
        copied(
            recorded,
            target_key=key,
            target_key_without_fingerprint=case.target_key_without_fingerprint,
            recommended_id=f"rec-{index}",
        )
    )
    return key


def cases(context, key, count):
    """Keys of tuning targets like the recommended one, ordered from the most to the least used."""
    with context.db.write() as session:
        stored = session.get(TuningTargetRow, ("default", key))
        created = [key, *(target_like(session, stored, index) for index in range(1, count))]
        uses = {name: (7 * index) % count for index, name in enumerate(created)}
        retunes.add_uses(session, {("default", name): count for name, count in uses.items()})
    return sorted(created, key=lambda name: -uses[name])


def run_a_day(context, worker):
    worker.register()
    while queue.start_due(context, challenge_steps.start_challenge) + worker.work(500):
        driver.drive(context, challenge_steps.start_challenge, challenge_steps.advance_retune)


@pytest.mark.wide_on_postgres
def test_one_project_s_retunes_do_not_hold_up_another_s(service):
    """Keep the only live worker busy with the first project's retune."""
    client, context, _ = service
    key = best(client)["target_key"]
    client.put("/v1/projects/b", json={}).raise_for_status()
    now = context.now()
    with context.db.write() as session:
        stored = session.get(TuningTargetRow, ("default", key))
        study_id = stored.recommended.study_id
        session.add(copied(stored, project_id="b", uses=0))
        session.flush()
        for name in ("default", "b"):
            queue.request_retune(
                session, project_id=name, target_key=key, cause=RetuneCause.MANUAL, not_before=now, now=now
            )
    assert queue.start_due(context, lambda _context, _row: study_id) == 2


def test_a_project_whose_worker_reports_more_than_the_budget_leaves_the_other_its_share(service):
    client, context, _ = service
    key = best(client)["target_key"]
    client.put("/v1/projects/b", json={}).raise_for_status()
    with context.db.write() as session:
        stored = session.get(TuningTargetRow, ("default", key))
        study = stored.recommended.study
        session.add(copied(stored, project_id="b", uses=0))
        session.add(challenge := copied(study, id="study-b", project_id="b", purpose=StudyPurpose.RETUNE))
        session.flush()
        run = trials.of_study(session, study.id)[0].runs[0]
        session.add(copied(run, id="run-b", study_id=challenge.id, trial_id=None, worker_session=None))
        session.flush()
        session.add(copied(run.attempts[0], run_id="run-b", finished_at=context.now(), gpu_seconds=1e12))
    with context.db.read() as session:
        left = {name: retune_budget.budgets_of(context, session, name)[0].gpu_seconds_left for name in ("default", "b")}
    assert left["b"] < 0 and left["default"] == A_DAY / 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_change_of_fifty_recommendations_keeps_to_the_budget_of_each_day_most_used_first(service, clock):
    client, context, _ = service
    by_use = cases(context, best(client)["target_key"], 50)
    worker = SimulatedWorker(client, fingerprint=CHANGED).register()
    watch_staleness.mark_stale_and_fresh(context)
    clock.turn(context.settings.fingerprint_debounce_s)
    worker.register()
    watch_staleness.mark_stale_and_fresh(context)
    requested_retunes = client.get("/v1/retunes", params={"limit": 100}).json()["retunes"]
    assert sorted(row["target_key"] for row in requested_retunes) == sorted(by_use)
    assert {tuple(fields_of(row)) for row in requested_retunes} == {("kernel",)}
    for _ in range(DAYS):
        run_a_day(context, worker)
        clock.turn(86_400)
    with context.db.read() as session:
        rows = session.scalars(select(RetuneRow).order_by(RetuneRow.started_at, RetuneRow.id)).all()
        begun = [row for row in rows if row.started_at is not None]
        assert 2 * DAYS <= len(begun) < 50 and {row.target_key for row in begun} == set(by_use[: len(begun)])
        assert {row.outcome for row in begun if row.state == "ended"} == {"kept"}
        spent = defaultdict(float)
        for attempt in session.scalars(select(AttemptRow).where(AttemptRow.started_at >= rows[0].created_at)):
            spent[attempt.finished_at.date()] += attempt.gpu_seconds
        assert len(spent) == DAYS and all(A_DAY / 2 < used <= A_DAY for used in spent.values()), spent
        waiting = session.scalars(
            select(RetuneRow.reason).where(RetuneRow.reason.like("waits for budget, at most until the next day%"))
        )
        assert "the fleet may use 200 GPU-seconds a day for retuning (UTC)" in waiting.first()


def test_two_replicas_do_not_both_spend_what_is_left(service, database_url, clock):
    client, context, _ = service
    workers = [SimulatedWorker(client, name=f"second-{n}").register() for n in range(2)]
    for key in cases(context, best(client)["target_key"], 2):
        ask(context, key)
    queue.start_due(context, challenge_steps.start_challenge)
    with context.db.read() as session:
        remaining = retune_budget.budgets_of(context, session, "default")[0].gpu_seconds_left
        run = max(retune_budget.likely_run_cost(session, row.challenge_study_id, 2) for row in retunes.running(session))
    # Enough for one run of either challenge, and not for two.
    settings = context.settings.model_copy(update={"retune_gpu_seconds_per_day": A_DAY - remaining + 1.5 * run})
    replicas = [Context(Database(database_url), settings, clock) for _ in range(2)]
    inputs = []

    def lease(index):
        request = LeaseRequest(protocol_version=PROTOCOL_VERSION, session=workers[index].session)
        inputs.append(grant(replicas[index], request))

    in_threads(lease, range(2))
    assert sum(lease is not None for lease in inputs) == 1, inputs
    for replica in replicas:
        replica.db.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_pool_gets_no_worker_for_a_retune_beyond_the_budget(service):
    client, context, _worker = service
    ask(context, best(client)["target_key"])
    assert queue.start_due(context, challenge_steps.start_challenge) == 1
    assert (demand.read(context, demand.PoolOffer()).studies, demand.read(context).studies) == (1, 1)
    with context.db.write() as session:
        keys.lock_project(session, "default").retuning = RetunePolicy(gpu_seconds_per_day=0.001)
    assert (demand.read(context, demand.PoolOffer()).studies, demand.read(context).studies) == (0, 1)


@pytest.mark.wide_on_postgres
def test_a_project_has_a_limit_of_its_own(service, clock):
    client, context, _worker = service
    with context.db.write() as session:
        keys.lock_project(session, "default").retuning = RetunePolicy(gpu_seconds_per_day=3)
    retune_id = ask(context, best(client)["target_key"])
    assert queue.start_due(context, challenge_steps.start_challenge) == 0
    body = client.get(f"/v1/retunes/{retune_id}").json()
    assert body["outcome"] == "skipped" and "project default may use 3 GPU-seconds a day" in body["reason"]


def manual(client, **changes):
    spec = {"name": "by hand", "trigger": "manual"} | changes
    body = client.post("/v1/schedules", json=spec).json()
    client.post(f"/v1/schedules/{body['schedule_id']}:run").raise_for_status()
    (actual,) = client.get("/v1/retunes", params={"schedule_id": body["schedule_id"]}).json()["retunes"]
    return actual["retune_id"]


@pytest.mark.wide_on_postgres
def test_retunes_start_in_their_windows(service, clock):
    client, context, _ = service
    clock.turn(12 * 3600)
    retune_id = manual(client, windows=["22:00-06:00"], timezone="Europe/Berlin")
    assert queue.start_due(context, challenge_steps.start_challenge) == 0
    assert client.get(f"/v1/retunes/{retune_id}").json()["reason"] == (
        "waits for a window of its schedule: 22:00-06:00 (Europe/Berlin)"
    )
    clock.turn(9 * 3600)
    SimulatedWorker(client).register()
    assert queue.start_due(context, challenge_steps.start_challenge) == 1


@pytest.mark.parametrize(
    ("planned", "gain", "outcome"), [(0.001, None, "skipped"), (0.1, 0.01, "skipped"), (10, 0.01, None)]
)
@pytest.mark.wide_on_postgres
def test_what_cannot_earn_its_cost_is_skipped_in_words(service, planned, gain, outcome):
    client, context, _ = service
    spec = {"name": "worth", "trigger": "fingerprint", "planned_gpu_hours": planned, "likely_gain": gain}
    client.post("/v1/schedules", json=spec).raise_for_status()
    retune_id = ask(context, best(client)["target_key"])
    queue.start_due(context, challenge_steps.start_challenge)
    body = client.get(f"/v1/retunes/{retune_id}").json()
    assert body["outcome"] == outcome and body["planned_gpu_seconds"] == planned * 3600
    if outcome == "skipped":
        assert "not worth it: it is likely to cost" in body["reason"] and "GPU-seconds" in body["reason"]


@pytest.mark.wide_on_postgres
def test_a_retune_that_has_used_what_its_schedule_allows_is_stopped(service):
    client, context, worker = service
    retune_id = manual(client, max_gpu_seconds=14)
    assert queue.start_due(context, challenge_steps.start_challenge) == 1
    for _ in range(3):
        worker.do(worker.lease())
    driver.drive(context, challenge_steps.start_challenge, challenge_steps.advance_retune)
    body = client.get(f"/v1/retunes/{retune_id}").json()
    assert body["outcome"] == "inconclusive" and "18 of the 14 GPU-seconds its schedule allows" in body["reason"]
    assert client.get(f"/v1/studies/{body['challenge_study_id']}").json()["state"] == "cancelled"


@pytest.fixture
def background(service):
    """A retune's study, begun."""
    client, context, worker = service
    ask(context, best(client)["target_key"])
    assert queue.start_due(context, challenge_steps.start_challenge) == 1
    return client, context, worker


@pytest.mark.wide_on_postgres
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


@pytest.mark.wide_on_postgres
def test_where_configured_a_retunes_run_gives_its_worker_up_at_once(database_url, spare_app, clock):
    settings = Settings(database_url=database_url, **QUIET, retune_yields="at_once")
    spare_app.state.context = context = Context(Database(database_url), settings, clock)
    with local_client(spare_app) as client:
        worker = SimulatedWorker(client).register()
        ask(context, best(client)["target_key"])
        queue.start_due(context, challenge_steps.start_challenge)
        lease = worker.lease()
        assert worker.heartbeat(lease)["action"] == "continue"
        clock.turn(5)
        study_id = client.post("/v1/studies", json=SPEC).json()["study_id"]
        assert worker.heartbeat(lease) | {"lease_s": 0} == {
            "action": "stop",
            "reason": "lease lost: the attempt ended because a study wants its worker",
            "lease_s": 0,
            "is_draining": False,
        }
        assert worker.lease().study_id == study_id


def test_a_study_whose_project_has_no_gpu_seconds_left_takes_no_worker_from_a_retune(sqlite_url, spare_app, clock):
    """The retune got the worker back and lost it again at each heartbeat, and failed after fifty times."""
    settings = Settings(database_url=sqlite_url, **QUIET, retune_yields="at_once")
    spare_app.state.context = context = Context(Database(sqlite_url), settings, clock)
    with local_client(spare_app) as client:
        worker = SimulatedWorker(client).register()
        ask(context, best(client)["target_key"])
        queue.start_due(context, challenge_steps.start_challenge)
        lease = worker.lease()
        clock.turn(5)
        client.post("/v1/studies", json=SPEC).raise_for_status()
        client.put("/v1/projects/default", json={"quotas": {"gpu_seconds_per_day": 1}}).raise_for_status()
        assert worker.heartbeat(lease)["action"] == "continue"


def test_a_study_whose_run_is_too_long_for_a_worker_takes_it_from_a_retune_once(sqlite_url, spare_app, clock):
    """The worker got the retune's run back each time, and lost it again at the next heartbeat."""
    settings = Settings(database_url=sqlite_url, **QUIET, retune_yields="at_once")
    spare_app.state.context = context = Context(Database(sqlite_url), settings, clock)
    with local_client(spare_app) as client:
        worker = SimulatedWorker(client).register()
        ask(context, best(client)["target_key"])
        queue.start_due(context, challenge_steps.start_challenge)

        def leased(ends_in_s):
            clock.turn(5)
            return Lease.model_validate(worker.post("/v1/leases", {"wait_s": 0, "ends_in_s": ends_in_s}).json())

        lease = worker.lease()
        while purpose_of(context, lease) != RunPurpose.VALIDATION:
            worker.do(lease)
            lease = worker.lease()
        study_id = client.post("/v1/studies", json=SPEC).json()["study_id"]
        assert worker.heartbeat(lease)["action"] == "stop", "the service cannot know yet that the worker ends soon"
        lease = leased(30)
        assert lease.study_id != study_id
        assert worker.heartbeat(lease)["action"] == "continue"
        worker.do(lease)
        lease = leased(30)
        assert worker.heartbeat(lease)["action"] == "continue", "nor from the retune's next run"
        clock.turn(5)
        later = client.post("/v1/studies", json=SPEC).json()["study_id"]
        assert worker.heartbeat(lease)["action"] == "stop", "a study that came later may have a run for it"
        assert leased(3600).study_id in (study_id, later)


def pause_and_resume(client, waiting, _ended):
    for action in ("pause", "resume"):
        client.post(f"/v1/studies/{waiting}:{action}").raise_for_status()


def extend(client, _waiting, ended):
    client.post(f"/v1/studies/{ended}:extend", json={"add_trials": 2}).raise_for_status()


@pytest.mark.parametrize("go_on", [pause_and_resume, extend])
def test_a_study_that_goes_on_later_takes_a_worker_that_was_taken_in_vain_before(sqlite_url, spare_app, clock, go_on):
    """Only its first start counted, so an extended study waited for the whole retune."""
    settings = Settings(database_url=sqlite_url, **QUIET, retune_yields="at_once")
    spare_app.state.context = context = Context(Database(sqlite_url), settings, clock)
    with local_client(spare_app) as client:
        worker = SimulatedWorker(client).register()
        ended = best(client)["study_id"]
        ask(context, best(client)["target_key"])
        queue.start_due(context, challenge_steps.start_challenge)

        def leased(ends_in_s):
            clock.turn(5)
            return Lease.model_validate(worker.post("/v1/leases", {"wait_s": 0, "ends_in_s": ends_in_s}).json())

        lease = worker.lease()
        while purpose_of(context, lease) != RunPurpose.VALIDATION:
            worker.do(lease)
            lease = worker.lease()
        waiting = client.post("/v1/studies", json=SPEC).json()["study_id"]
        retune_run = lease.run_id
        assert worker.heartbeat(lease)["action"] == "stop"
        with context.db.read() as session:
            attempt = leases.attempt_of(session, retune_run, lease.attempt)
            assert attempt.end == "preempted"
        lease = leased(30)
        assert worker.heartbeat(lease)["action"] == "continue", "it was taken in vain"
        clock.turn(5)
        go_on(client, waiting, ended)
        assert worker.heartbeat(lease)["action"] == "stop"
        assert leased(3600).study_id in (waiting, ended)


def test_a_study_that_waits_for_the_worker_of_its_block_takes_no_other_from_a_retune(sqlite_url, spare_app, clock):
    """The retune's worker got nothing of the study, and lost its run again at each heartbeat."""
    settings = Settings(database_url=sqlite_url, **QUIET, retune_yields="at_once")
    spare_app.state.context = context = Context(Database(sqlite_url), settings, clock)
    with local_client(spare_app) as client:
        comparing = SimulatedWorker(client, name="comparing").register()
        retuning = SimulatedWorker(client, name="retuning").register()
        ask(context, best(client)["target_key"])
        queue.start_due(context, challenge_steps.start_challenge)
        lease = retuning.lease()
        study_id = client.post("/v1/studies", json=SPEC).json()["study_id"]
        while client.get(f"/v1/studies/{study_id}").json()["phase"] != "final_comparison":
            comparing.do(comparing.lease())
        comparing.do(comparing.lease())
        assert retuning.heartbeat(lease)["action"] == "continue"
        workers = client.get("/v1/workers").json()["workers"]
        (drained,) = (worker["worker_id"] for worker in workers if worker["name"] == "comparing")
        client.post(f"/v1/workers/{drained}:drain").raise_for_status()
        assert retuning.heartbeat(lease)["action"] == "stop", "the rest of the block is for any worker now"


@pytest.mark.wide_on_postgres
def test_uses_are_counted_without_a_write_by_the_reader(service, clock):
    client, context, _ = service
    key = best(client)["target_key"]
    for _ in range(3):
        best(client, target_key=key)
    counts = context.usage_counts.take()
    assert counts == {("default", key): 4}
    assert context.usage_counts.take() == {}
