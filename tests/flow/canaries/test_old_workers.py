"""Canaries and workers of an older release: a run that a worker cannot read is not sent to it."""

import pytest
from sqlalchemy import select

from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.canaries import CanaryRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.canaries import judge, send
from shardtune.service.http.errors import Conflict
from shardtune.service.retuning import system_studies
from tests.flow.helpers.fleet import DAY_S
from tests.support.service.scenarios import WORKLOAD
from tests.support.service.simulated_worker import SPEC, SimulatedWorker

OLD = {"protocol_version": 1}
LENGTHS = {"workload": WORKLOAD | {"data": {"lengths": [10, 20, 30, 40] * 4}}}
LOW_STATES = {"workload": WORKLOAD | {"precision": "bf16-true"}}
SHORT_STEPS = {"budget": {"max_trials": 7}}
"""Study that is stored as one of short steps below, since the simulated model's steps are not long."""


class OldWorker(SimulatedWorker):
    """Worker of the release before."""

    def post(self, path, body):
        return super().post(path, OLD | body)


def tuned(client, changes):
    """The tuning target of a study that a worker of this release has measured."""
    machine = SimulatedWorker(client, name="new").register()
    study = client.post("/v1/studies", json=SPEC | changes).raise_for_status().json()
    machine.work()
    context = client.app.state.context
    with context.db.write() as session:
        if changes is SHORT_STEPS:
            session.get(StudyRow, study["study_id"]).parity_samples = 16
        (target,) = session.scalars(select(TuningTargetRow)).all()
        return context, target.target_key


def send_next(context, clock, key):
    """The result of sending the canary of the next period."""
    with context.db.write() as session:
        return send.send_canary(context, session, "default", key, clock())


def sent(context):
    with context.db.read() as session:
        return [(row.worker.name, row.verdict, row.reason) for row in session.scalars(select(CanaryRow))]


@pytest.mark.parametrize("changes", [LENGTHS, LOW_STATES, SHORT_STEPS], ids=["lengths", "bf16-true", "short steps"])
def test_a_canary_that_an_old_worker_cannot_read_is_not_sent_to_it(quick_client, clock, changes):
    context, key = tuned(quick_client, changes)
    clock.turn(DAY_S)
    old = OldWorker(quick_client, name="a-old").register(**OLD)
    result = send_next(context, clock, key)
    assert isinstance(result, send.NotSent) and "a-old" in result.reason and "upgrade" in result.reason
    SimulatedWorker(quick_client, name="new").register()
    assert isinstance(send_next(context, clock, key), send.Sent)
    assert [name for name, *_ in sent(context)] == ["new"] and old.work() == 0


def test_an_old_worker_gets_the_canary_that_it_can_read(quick_client, clock):
    context, key = tuned(quick_client, {})
    clock.turn(DAY_S)
    old = OldWorker(quick_client, name="a-old").register(**OLD)
    assert isinstance(send_next(context, clock, key), send.Sent) and old.work() == 1


def test_a_canary_ends_when_its_worker_returns_with_an_older_release(quick_client, clock):
    context, key = tuned(quick_client, LENGTHS)
    clock.turn(DAY_S)
    SimulatedWorker(quick_client, name="new").register()
    assert isinstance(send_next(context, clock, key), send.Sent)
    OldWorker(quick_client, name="new").register(**OLD)
    assert judge.judge_and_begin(context) == 1
    ((name, verdict, reason),) = sent(context)
    assert (name, verdict) == ("new", "unmeasured") and "upgrade" in reason


def test_a_retune_that_no_live_worker_can_read_says_so(quick_client, clock):
    context, _ = tuned(quick_client, LENGTHS)
    clock.turn(DAY_S)
    OldWorker(quick_client, name="a-old").register(**OLD)
    with context.db.read() as session:
        (target,) = session.scalars(select(TuningTargetRow)).all()
        with pytest.raises(Conflict, match=r"no live worker can read its runs: a-old .*upgrade"):
            system_studies.choose_worker(context, session, target, "manual")


def test_a_request_for_work_renews_a_workers_protocol_version(quick_client):
    worker = OldWorker(quick_client, name="a-old").register()
    context = quick_client.app.state.context

    def stored():
        with context.db.read() as session:
            return session.scalars(select(WorkerRow.protocol_version)).one()

    assert stored() == 2
    assert worker.lease() is None and stored() == 1


def test_an_upgrade_of_the_schema_ends_no_canary_of_a_worker_that_has_not_asked_since(quick_client, clock):
    """The release before this column registered the worker, so that its version is unknown."""
    context, key = tuned(quick_client, LENGTHS)
    clock.turn(DAY_S)
    SimulatedWorker(quick_client, name="new").register()
    assert isinstance(send_next(context, clock, key), send.Sent)
    with context.db.write() as session:
        for row in session.scalars(select(WorkerRow)):
            row.protocol_version = None
    assert judge.judge_and_begin(context) == 0
    ((_, verdict, _),) = sent(context)
    assert verdict is None
