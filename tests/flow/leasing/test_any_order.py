"""Any order of lease, heartbeat, report, restart, expiry and extension, with holders that do not know they are stale.

Hypothesis chooses the order; a small model says who holds what. At the end of each, a worker finishes the study and the
whole history must be right. More of it with SHARDTUNE_TEST_LONG=1.
"""

import os

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import select

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TASK_KINDS, ModelSummaryTask, ResumeTask
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.tables.trials import RunRow
from shardtune.service.lifecycle import expiry
from tests.support.service import run_history
from tests.support.service.simulated_worker import (
    MODEL_SUMMARY,
    SPEC,
    SimulatedWorker,
    failure,
    measurement,
    restarted,
    speed_of,
)

LONG = os.environ.get("SHARDTUNE_TEST_LONG") == "1"
WORKERS = st.integers(0, 2)
KINDS = st.sampled_from([None, None, None, FailureKind.OOM, FailureKind.CRASH, FailureKind.WORKER_LOST])


def machine(client, clock):
    context = client.app.state.context
    lease_s = context.settings.lease_s

    class Leases(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.workers = [self.worker(index) for index in range(3)]
            self.study_id = client.post("/v1/studies", json=SPEC | {"budget": {"max_trials": 4}}).json()["study_id"]
            self.live, self.until, self.stale, self.done = {}, {}, [], []

        def worker(self, index):
            return SimulatedWorker(client, name=f"w{index}", task_kinds=TASK_KINDS).register()

        def lose(self, index):
            lease = self.live.pop(index, None)
            if lease is not None:
                self.stale.append((self.workers[index], lease))

        @rule(index=WORKERS)
        def lease(self, index):
            got = self.workers[index].lease()
            reserved_stored = self.live.get(index)
            if reserved_stored is not None:
                assert (got.run_id, got.attempt) == (reserved_stored.run_id, reserved_stored.attempt)
            elif got is not None:
                assert got.run_id not in {lease.run_id for lease in self.live.values()}
                self.live[index] = got
            self.until[index] = clock.moment.timestamp() + lease_s

        @precondition(lambda self: self.live)
        @rule(data=st.data())
        def heartbeat(self, data):
            index = data.draw(st.sampled_from(sorted(self.live)))
            assert self.workers[index].heartbeat(self.live[index])["action"] == "continue"
            self.until[index] = clock.moment.timestamp() + lease_s

        @precondition(lambda self: self.live)
        @rule(data=st.data(), kind=KINDS)
        def report(self, data, kind):
            index = data.draw(st.sampled_from(sorted(self.live)))
            lease = self.live.pop(index)
            outcome = outcome_of(lease, kind)
            assert self.workers[index].report(lease, outcome).json() == {"applied": True}
            self.done.append((self.workers[index], lease, outcome))

        @precondition(lambda self: self.done)
        @rule(data=st.data())
        def report_again(self, data):
            worker, lease, outcome = data.draw(st.sampled_from(self.done))
            assert worker.report(lease, outcome).json() == {"applied": False}
            assert worker.report(lease, outcome, gpu_seconds=7.0).status_code == 409

        @precondition(lambda self: self.stale)
        @rule(data=st.data(), kind=KINDS)
        def stale_holder_speaks(self, data, kind):
            worker, lease = data.draw(st.sampled_from(self.stale))
            assert worker.heartbeat(lease)["action"] == "stop"
            assert worker.report(lease, outcome_of(lease, kind)).status_code == 409

        @rule()
        def extend(self):
            answer = client.post(f"/v1/studies/{self.study_id}:extend", json={"add_trials": 1})
            assert answer.status_code in (200, 409, 422), answer.text

        @rule(index=WORKERS)
        def restart(self, index):
            self.lose(index)
            self.workers[index] = self.worker(index)

        @rule(share=st.sampled_from([0.4, 0.7, 1.1]))
        def time_passes(self, share):
            clock.turn(lease_s * share)
            expired = [index for index in self.live if self.until[index] < clock.moment.timestamp()]
            assert expiry.sweep(context) == len(expired)
            for index in expired:
                self.lose(index)

        @invariant()
        def each_run_has_the_holder_the_model_says(self):
            with context.db.read() as session:
                query = select(RunRow.id, RunRow.attempt, RunRow.worker_session)
                stored = session.execute(query.where(RunRow.state == TrialState.RUNNING)).all()
            reserved = {(lease.run_id, lease.attempt, self.workers[i].session) for i, lease in self.live.items()}
            assert {tuple(row) for row in stored} == reserved

        def teardown(self):
            for index in range(3):
                self.restart(index)
            self.workers[0].work(at_most=400)
            assert run_history.faults(context.db, only=[self.study_id]) == []

    return Leases


def outcome_of(lease, kind):
    if kind is not None:
        return failure(kind)
    if isinstance(lease.task, ResumeTask):
        return restarted()
    return MODEL_SUMMARY if isinstance(lease.task, ModelSummaryTask) else measurement(speed_of(lease.task.config))


@pytest.mark.wide_on_postgres
def test_any_order_of_events_keeps_the_guarantees(client, clock):
    run_state_machine_as_test(
        machine(client, clock),
        settings=settings(
            max_examples=300 if LONG else 2,
            stateful_step_count=30,
            deadline=None,
            derandomize=not LONG,
            suppress_health_check=list(HealthCheck),
        ),
    )
