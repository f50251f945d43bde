"""Daily budget of retunes, which 50 stale recommendations keep to, and a project's share of it."""

from collections import defaultdict

import pytest
import sqlalchemy
from sqlalchemy import select

from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.retuning.retunes import RetuneCause, RetunePolicy
from shardtune.api_schemas.studies.study_state import StudyPurpose
from shardtune.api_schemas.trials.leases import LeaseRequest
from shardtune.db.queries import keys, retunes, trials
from shardtune.db.session import Database
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.retunes import RetuneRow
from shardtune.db.tables.trials import AttemptRow
from shardtune.service.access import retune_budget
from shardtune.service.best import watch_staleness
from shardtune.service.process.context import Context
from shardtune.service.retuning import challenge_steps, driver, queue
from shardtune.service.studies import demand
from tests.flow.helpers.immediate_claim import grant
from tests.flow.helpers.retuning_lab import CHANGED, ask
from tests.flow.retuning.retuning_settings import A_DAY
from tests.support.long_run import IS_LONG
from tests.support.service.scenarios import best, fields_of, in_threads
from tests.support.service.simulated_worker import SimulatedWorker

pytestmark = pytest.mark.answered
DAYS = 6 if IS_LONG else 2


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


@pytest.mark.wide_on_postgres
def test_uses_are_counted_without_a_write_by_the_reader(service, clock):
    client, context, _ = service
    key = best(client)["target_key"]
    for _ in range(3):
        best(client, target_key=key)
    counts = context.usage_counts.take()
    assert counts == {("default", key): 4}
    assert context.usage_counts.take() == {}
