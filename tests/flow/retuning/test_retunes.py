"""Retunes: at most one of a case at a time, asked for by many, started once, and read by their users."""

from datetime import timedelta

import pytest

from shardtune.api_schemas.retuning.retunes import Gain, RetuneOutcome, RetuneState
from shardtune.db.queries import retunes as rows
from shardtune.service.http.errors import Invalid
from shardtune.service.retuning import challenge_steps, driver, queue, records
from tests.flow.helpers.retuning_lab import ask
from tests.support.service.page_reader import token
from tests.support.service.scenarios import best, change, in_threads, tune
from tests.support.service.simulated_worker import SimulatedWorker


@pytest.fixture
def case(client):
    """A served recommendation, where a test is marked `answered`: its context, its key and the study that found it."""
    served = best(client)
    return client.app.state.context, served["target_key"], served["study_id"]


@pytest.mark.answered
def test_many_causes_make_one_retune_of_a_target(client, case):
    context, key, _ = case
    first = ask(context, key, wait_s=60, changes=[change("driver")])
    in_threads(lambda _: ask(context, key, wait_s=120, changes=[change("driver", "later"), change("nccl")]), range(4))
    (actual,) = client.get("/v1/retunes", params={"target_key": key}).json()["retunes"]
    assert (actual["retune_id"], actual["state"], actual["cause"]) == (first, "queued", "fingerprint")
    assert actual["changes"] == [
        {"field": "driver", "was": "old", "now": "later", "effect": "stale"},
        {"field": "nccl", "was": "old", "now": "new", "effect": "stale"},
    ]
    assert actual["not_before"] == (context.now() + timedelta(seconds=120)).isoformat().replace("+00:00", "Z")


@pytest.mark.answered
def test_a_due_retune_starts_once_and_its_target_is_free_when_it_has_ended(client, case, clock):
    context, key, study_id = case
    retune_id = ask(context, key, wait_s=60)
    assert queue.start_due(context, lambda *_: study_id) == 0
    clock.turn(60)
    started = []
    in_threads(lambda _: queue.start_due(context, lambda _, row: started.append(row.id) or study_id), range(4))
    assert started == [retune_id]
    assert client.get(f"/v1/retunes/{retune_id}").json()["challenge_study_id"] == study_id
    with context.db.write() as session:
        gain = Gain(value=1.25, ci95=(1.2, 1.3))
        row = rows.lock(session, retune_id)
        row.planned_gpu_seconds = 1000.0
        records.end_retune(context, session, row, RetuneOutcome.REPLACED, "replaced", gain)
    ended = client.get(f"/v1/retunes/{retune_id}").json()
    assert (ended["outcome"], ended["expected_saving_gpu_seconds"]) == ("replaced", pytest.approx(200.0))
    assert ended["gpu_seconds"] == client.get(f"/v1/studies/{study_id}").json()["gpu_seconds"] > 0
    assert ask(context, key) != retune_id


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_a_retune_nobody_can_run_waits_and_says_so(client, case, clock):
    context, key, study_id = case
    retune_id = ask(context, key)

    def reject(*_):
        raise Invalid("no_worker", "no worker is registered")

    assert queue.start_due(context, reject) == 0
    body = client.get(f"/v1/retunes/{retune_id}").json()
    assert (body["state"], body["reason"]) == ("queued", "waits: no worker is registered")
    clock.turn(600)
    assert queue.start_due(context, lambda *_: study_id) == 1


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_a_retune_whose_recommendation_was_withdrawn_is_skipped(client, case):
    """It waited without end, and with it each later tick of its schedule."""
    context, key, study_id = case
    retune_id = ask(context, key)
    client.delete(f"/v1/studies/{study_id}", params={"withdraw": True}).raise_for_status()
    assert queue.start_due(context, challenge_steps.start_challenge) == 0
    body = client.get(f"/v1/retunes/{retune_id}").json()
    assert (body["state"], body["outcome"]) == ("ended", "skipped")
    assert body["reason"] == f"nothing is recommended under {key}, so there is no incumbent"


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_the_most_used_recommendation_goes_first(client, case):
    context, key, study_id = case
    tune(client, workload={"sequence_length": 32, "global_batch": 8})
    other = next(
        row["target_key"]
        for row in client.get("/v1/recommendations").json()["recommendations"]
        if row["target_key"] != key
    )
    ask(context, key)
    ask(context, other)
    with context.db.write() as session:
        rows.add_uses(session, {("default", other): 3})
    started = []
    queue.start_due(context, lambda _, row: started.append(row.target_key) or study_id)
    assert started == [other]
    (waiting,) = client.get("/v1/retunes", params={"target_key": key}).json()["retunes"]
    assert waiting["reason"] == "waits for 1 running retune: one at a time for each live worker"


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_starting_that_breaks_again_and_again_fails_the_retune(client, case, clock):
    context, key, _ = case
    retune_id = ask(context, key)

    def break_down(*_):
        raise RuntimeError("broken")

    for _ in range(5):
        queue.start_due(context, break_down)
        clock.turn(600)
    body = client.get(f"/v1/retunes/{retune_id}").json()
    assert (body["state"], body["outcome"]) == (RetuneState.ENDED, RetuneOutcome.FAILED)
    assert "RuntimeError: broken" in body["reason"]


def test_unknown_retune(quick_client):
    answer = quick_client.get("/v1/retunes/retune-none")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_retune")


def cancel(client, retune_id, **headers):
    return client.post(f"/v1/retunes/{retune_id}:cancel", headers=headers)


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_a_queued_retune_is_cancelled_and_stays_so(client, case):
    context, key, study_id = case
    retune_id = ask(context, key)
    first = cancel(client, retune_id, **{"Idempotency-Key": "once"})
    assert (first.status_code, first.json()["outcome"], first.json()["reason"]) == (
        200,
        "skipped",
        "cancelled by a person",
    )
    assert cancel(client, retune_id).json() == first.json()
    assert queue.start_due(context, lambda *_: study_id) == 0
    assert ask(context, key) != retune_id, "the case may be measured again"


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_a_running_retune_is_cancelled_with_its_study_and_takes_its_run_from_the_worker(client, case):
    context, key, _ = case
    before = best(client)
    retune_id = ask(context, key)
    worker = SimulatedWorker(client).register()
    assert queue.start_due(context, challenge_steps.start_challenge) == 1
    lease = worker.lease()
    assert cancel(client, retune_id).json()["state"] == "ended"
    challenged = client.get(f"/v1/retunes/{retune_id}").json()["challenge_study_id"]
    assert client.get(f"/v1/studies/{challenged}").json()["state"] == "cancelled"
    assert worker.heartbeat(lease)["action"] == "stop" and worker.lease() is None
    driver.drive(context, challenge_steps.start_challenge, challenge_steps.advance_retune)
    assert best(client)["recommendation_id"] == before["recommendation_id"]


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_what_has_ended_or_is_just_being_started_cannot_be_cancelled(client, case):
    context, key, study_id = case
    retune_id = ask(context, key)

    def while_it_starts(_, row):
        rejected = cancel(client, row.id)
        assert (rejected.status_code, rejected.json()["code"]) == (409, "retune_starting")
        return study_id

    assert queue.start_due(context, while_it_starts) == 1
    with context.db.write() as session:
        records.end_retune(context, session, rows.lock(session, retune_id), RetuneOutcome.KEPT, "kept")
    rejected = cancel(client, retune_id)
    assert (rejected.status_code, rejected.json()["code"]) == (409, "retune_ended")
    assert cancel(client, "retune-none").json()["code"] == "unknown_retune"


@pytest.mark.answered
def test_the_page_cancels_a_retune(quick_client, context):
    retune_id = ask(context, best(quick_client)["target_key"])
    shown = quick_client.get("/schedules", headers={"accept": "text/html"}).text
    assert f"/schedules/retunes/{retune_id}/cancel" in shown
    data = {"csrf": token(quick_client)}
    quick_client.post(f"/schedules/retunes/{retune_id}/cancel", data=data, follow_redirects=False)
    shown = quick_client.get("/schedules", headers={"accept": "text/html"}).text
    assert f"/schedules/retunes/{retune_id}/cancel" not in shown and "cancelled by a person" in shown
