"""Schedules over HTTP: made, read, changed, paused, run, deleted; who may; what they ask for."""

import pytest

from shardtune.api_schemas.retuning.retunes import RetuneOutcome
from shardtune.db.queries import retunes as rows
from shardtune.service.http.errors import Conflict
from shardtune.service.retuning import queue
from shardtune.service.retuning.records import end_retune
from shardtune.service.schedules import ticks
from tests.flow.schedules.schedule_calls import NIGHTLY, act, make, read, retunes
from tests.support.service.scenarios import bearer, best, make_key, tune


@pytest.mark.wide_on_postgres
def test_a_schedule_is_made_changed_and_deleted(client):
    created = make(client)
    assert created["next_tick_at"] == "2026-01-01T01:30:00Z" and not created["is_paused"]
    (listed,) = client.get("/v1/schedules").json()["schedules"]
    assert listed == created
    path = f"/v1/schedules/{created['schedule_id']}"
    tag = client.get(path).headers["etag"]
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 304
    changed = client.put(path, json=NIGHTLY | {"cron": "0 12 * * *"}, headers={"If-Match": tag})
    assert changed.json()["next_tick_at"] == "2026-01-01T11:00:00Z"
    late = client.put(path, json=NIGHTLY, headers={"If-Match": tag})
    assert (late.status_code, late.json()["code"]) == (412, "precondition_failed")
    assert client.delete(path, headers={"If-Match": tag}).status_code == 412
    assert client.delete(path).status_code == 204
    assert client.get(path).json()["code"] == "unknown_schedule"


def test_the_same_request_makes_one_schedule(quick_client):
    sent = [quick_client.post("/v1/schedules", json=NIGHTLY, headers={"Idempotency-Key": "one"}) for _ in range(2)]
    assert sent[0].json() == sent[1].json() and len(quick_client.get("/v1/schedules").json()["schedules"]) == 1


@pytest.mark.parametrize(
    ("changes", "field", "remedy"),
    [
        ({"cron": "61 2 * * *"}, "cron", "cannot be read"),
        ({"cron": "* * * * *"}, "cron", "at least 300 s"),
        ({"cron": "0 0 30 2 *"}, "cron", "bad day-of-month"),
        ({"timezone": "Berlin"}, "timezone", "did you mean Europe/Berlin"),
        ({"windows": ["night"]}, "windows", "22:00-06:00"),
        ({"trigger": "manual"}, "cron", "leave it out"),
        ({"targets": {"target_keys": ["0" * 32]}}, "targets.target_keys", "GET /v1/recommendations"),
    ],
)
def test_wrong_schedules_are_rejected(quick_client, changes, field, remedy):
    answer = quick_client.post("/v1/schedules", json=NIGHTLY | changes)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == field and remedy in error["message"] and error["value"] is not None


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_a_tick_requests_the_targets_it_selects(client, clock):
    context = client.app.state.context
    key = best(client)["target_key"]
    tune(client, workload={"sequence_length": 32, "global_batch": 8})
    every, created, none = (
        make(client),
        make(client, targets={"target_keys": [key]}),
        make(client, targets={"model": "gpt2"}),
    )
    clock.turn(2 * 3600)
    assert (ticks.account_for_due(context), ticks.account_for_due(context)) == (3, 0)
    assert {row["target_key"] for row in retunes(client, schedule_id=every["schedule_id"])} >= {key}
    assert len(retunes(client)) == 2
    (actual,) = read(client, created)["last_ticks"]
    assert (actual["state"], actual["targets"], actual["kind"]) == ("started", 1, "cron")
    assert "had an unfinished retune already" in actual["reason"]
    (actual,) = read(client, none)["last_ticks"]
    assert (actual["state"], actual["reason"]) == ("skipped", "no recommendation matches the schedule's targets")
    assert read(client, every)["next_tick_at"] == "2026-01-02T01:30:00Z"


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_what_is_paused_has_no_ticks_and_makes_up_for_none(client, clock):
    context = client.app.state.context
    created = make(client)
    assert act(client, created, "pause")["next_tick_at"] is None
    clock.turn(3 * 86_400)
    assert ticks.account_for_due(context) == 0
    assert act(client, created, "resume")["next_tick_at"] == "2026-01-04T01:30:00Z"
    assert read(client, created)["last_ticks"] == []


@pytest.mark.answered
def test_a_person_runs_a_schedule_now_once_in_a_moment(client):
    created = make(client, trigger="manual", cron=None)
    assert created["next_tick_at"] is None
    act(client, created, "pause")
    assert act(client, created, "run") == act(client, created, "run")
    (retune,) = retunes(client)
    assert (retune["cause"], retune["state"]) == ("manual", "queued")
    assert client.get(f"/v1/schedules/{created['schedule_id']}/ticks").json()["ticks"][0]["kind"] == "manual"
    client.delete(f"/v1/schedules/{created['schedule_id']}")
    (retune,) = retunes(client)
    assert (retune["outcome"], retune["reason"]) == ("skipped", "its schedule was deleted")


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_ticks_wait_for_the_retunes_before_them_or_are_left_out(client, clock):
    context = client.app.state.context
    waiting = make(client, cron="0 * * * *", overlap="queue")
    skipping = make(client, cron="0 * * * *", targets={"model": "gpt2"})
    for _ in range(2):
        clock.turn(3600)
        ticks.account_for_due(context)
    assert [tick["state"] for tick in read(client, waiting)["last_ticks"]] == ["queued", "started"]
    assert ticks.start_queued(context) == 0
    (running,) = retunes(client)
    end(client, running)
    assert ticks.start_queued(context) == 1
    assert [tick["state"] for tick in read(client, waiting)["last_ticks"]] == ["started", "started"]
    assert [tick["state"] for tick in read(client, skipping)["last_ticks"]] == ["skipped", "skipped"]


@pytest.mark.answered
def test_a_retune_that_finds_no_worker_holds_up_no_tick_of_its_schedule(client, clock):
    """The hardware of one target may be gone for good: the other targets of its schedule were never measured again."""
    context = client.app.state.context
    schedule = make(client, cron="0 * * * *")
    clock.turn(3600)
    ticks.account_for_due(context)

    def no_worker(*_):
        raise Conflict("no_worker", "no live worker could measure it")

    assert queue.start_due(context, no_worker) == 0
    clock.turn(3600)
    queue.start_due(context, no_worker)
    ticks.account_for_due(context)
    assert [tick["state"] for tick in read(client, schedule)["last_ticks"]] == ["started", "started"]
    (waiting,) = retunes(client)
    assert (waiting["state"], waiting["reason"]) == ("queued", "waits: no live worker could measure it")


def end(client, retune):
    context = client.app.state.context
    with context.db.write() as session:
        end_retune(context, session, rows.lock(session, retune["retune_id"]), RetuneOutcome.KEPT, "kept")


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_a_change_of_the_fingerprint_is_the_business_of_the_schedules_for_it(client):
    context = client.app.state.context
    key = best(client)["target_key"]

    def ask():
        with context.db.write() as session:
            row = queue.request_retune(
                session,
                project_id="default",
                target_key=key,
                cause="fingerprint",
                not_before=context.now(),
                now=context.now(),
            )
            return row.id

    created = make(client, trigger="fingerprint", cron=None, planned_gpu_hours=2)
    act(client, created, "pause")
    paused = client.get(f"/v1/retunes/{ask()}").json()
    assert paused["outcome"] == "skipped" and "but paused" in paused["reason"]
    act(client, created, "resume")
    body = client.get(f"/v1/retunes/{ask()}").json()
    assert (body["schedule_id"], body["planned_gpu_seconds"]) == (created["schedule_id"], 7200)


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_who_may_and_whose(client):
    mine = make(client)
    client.headers["authorization"] = bearer(make_key(client, "admin"))["authorization"]
    team = bearer(make_key(client, "studies:write", project="team-a"))
    reader = bearer(make_key(client, "studies:read"))
    run = f"/v1/schedules/{mine['schedule_id']}:run"
    assert client.get("/v1/schedules", headers=team).status_code == 403
    assert client.post(run, headers=team).json()["code"] == "unknown_schedule"
    assert client.post(run, headers=reader).json()["code"] == "scope_missing"
    assert client.get("/v1/schedules", headers=reader).json()["schedules"] == [mine]
    assert client.post("/v1/schedules", json=NIGHTLY, headers=team).json()["project_id"] == "team-a"
