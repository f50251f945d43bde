"""The service ends an attempt past its deadline, also while its worker renews the lease."""

import pytest

from shardtune.db.tables.trials import RunRow
from shardtune.service.leasing import reclaim
from tests.support.service.scenarios import in_threads
from tests.support.service.simulated_worker import MODEL_SUMMARY, SPEC, SimulatedWorker, measurement

BUSY = {"phase": "measuring", "step": 7, "step_s": 1.0, "steps_left": 20}


@pytest.fixture
def worker(client):
    return SimulatedWorker(client).register()


@pytest.fixture
def context(client):
    return client.app.state.context


def hang(worker, lease, clock, context, seconds, progress=None):
    """Let time pass while heartbeats arrive; returns the seconds until the service ordered a stop, or None."""
    for passed in range(0, int(seconds), 15):
        clock.turn(15)
        reclaim.sweep(context)
        answer = worker.heartbeat(lease, progress=progress(passed) if callable(progress) else progress)
        if answer["action"] == "stop":
            return passed + 15, answer["reason"]
    return None


def attempts(client, study_id):
    return client.get(f"/v1/studies/{study_id}/trials").json()["trials"][0]["runs"][0]["attempts"]


@pytest.mark.wide_on_postgres
def test_a_run_whose_agent_hangs_ends_although_heartbeats_arrive(client, worker, lease, clock, context, study_id):
    ended_s, reason = hang(worker, lease, clock, context, 10 * lease.deadline_s)
    assert lease.deadline_s < ended_s <= 2 * lease.deadline_s + 15
    assert "without reporting an end" in reason
    (ended,) = attempts(client, study_id)
    assert ended["end"] == "deadline" and "the service ended the attempt" in ended["failure_message"]
    assert ended["gpu_seconds"] == pytest.approx(ended_s * 2)


@pytest.mark.wide_on_postgres
def test_a_late_report_of_an_overdue_attempt_changes_nothing_and_is_told_why(
    client, worker, lease, clock, context, study_id
):
    hang(worker, lease, clock, context, 10 * lease.deadline_s)
    before = client.get(f"/v1/studies/{study_id}").json()
    for _ in range(2):
        late = worker.report(lease, measurement(1000))
        assert (late.status_code, late.json()["code"]) == (409, "lease_lost")
        assert (
            "the service ended the attempt" in late.json()["detail"] and "nothing was changed" in late.json()["detail"]
        )
    assert client.get(f"/v1/studies/{study_id}").json() == before


@pytest.mark.wide_on_postgres
def test_a_run_that_hangs_each_time_fails_with_the_reason(client, worker, lease, clock, context, study_id):
    for _ in range(2):
        hang(worker, lease, clock, context, 10 * lease.deadline_s)
        lease = worker.lease()
    (trial, *_) = client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    assert trial["state"] == "failed" and trial["failure"]["kind"] == "deadline"
    assert lease.trial_number != trial["number"]


@pytest.mark.wide_on_postgres
def test_progress_extends_the_deadline_but_not_without_end(worker, lease, clock, context):
    def advancing(passed):
        return BUSY | {"step": passed}

    assert hang(worker, lease, clock, context, 5 * lease.deadline_s, advancing) is None
    ended_s, _ = hang(worker, lease, clock, context, 100 * lease.deadline_s, advancing)
    assert ended_s + 5 * lease.deadline_s <= 20 * lease.deadline_s + 30


@pytest.mark.wide_on_postgres
def test_the_same_progress_again_extends_the_deadline_once(worker, lease, clock, context):
    ended_s, _ = hang(worker, lease, clock, context, 100 * lease.deadline_s, BUSY)
    assert ended_s <= 4 * lease.deadline_s + 30


@pytest.mark.wide_on_postgres
def test_a_run_leased_before_deadlines_existed_gets_one(worker, lease, clock, context):
    with context.db.write() as session:
        session.get(RunRow, lease.run_id).deadline_at = None
    assert reclaim.end_overdue_attempts(context) == 0
    assert hang(worker, lease, clock, context, 10 * lease.deadline_s) is not None


def test_two_services_end_an_overdue_attempt_once(client, worker, lease, clock, context, study_id):
    clock.turn(2 * lease.deadline_s + 1)
    worker.heartbeat(lease)
    ended = [reclaim.end_overdue_attempts(context) for _ in range(2)]
    assert ended == [1, 0] and len(attempts(client, study_id)) == 1


def test_a_report_and_the_end_at_the_deadline_race_and_one_of_them_counts(
    client, worker, lease, clock, context, study_id
):
    """Both lock the study, so the second finds the attempt ended."""
    clock.turn(2 * lease.deadline_s + 1)
    worker.heartbeat(lease)
    results = {}

    def act(kind):
        results[kind] = (
            worker.report(lease, measurement(1000)).status_code
            if kind == "report"
            else reclaim.end_overdue_attempts(context)
        )

    in_threads(act, ["report", "sweep"])
    assert (results["report"], results["sweep"]) in ((200, 0), (409, 1))
    (ended, *later) = attempts(client, study_id)
    assert ended["end"] == ("complete" if results["report"] == 200 else "deadline") and not later
    spent = client.get(f"/v1/studies/{study_id}").json()["gpu_seconds"]
    assert spent == pytest.approx(6.0 + ended["gpu_seconds"])


@pytest.mark.wide_on_postgres
def test_a_run_that_waits_for_a_quiet_machine_is_not_overdue(client, worker, clock, context):
    wait_s = 3 * 3600
    client.post("/v1/studies", json=SPEC | {"wait_for_quiet_s": wait_s}).raise_for_status()
    worker.report(worker.lease(), MODEL_SUMMARY).raise_for_status()
    lease = worker.lease()
    waiting = {"phase": "waiting_for_quiet"}
    assert lease.quiet_wait.most_s == wait_s > 20 * lease.deadline_s
    assert hang(worker, lease, clock, context, wait_s, lambda passed: waiting | {"waited_s": float(passed)}) is None
    measuring = BUSY | {"waited_s": float(wait_s)}
    ended_s, _ = hang(worker, lease, clock, context, 20 * lease.deadline_s, measuring)
    assert ended_s <= 4 * lease.deadline_s, "after the wait it hangs"
