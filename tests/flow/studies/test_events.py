"""Events: one for each change, in order, without gaps; as pages and as a stream."""

import json
from collections import Counter

import pytest

from shardtune.api_schemas.notifications.events import EVENT_TYPES
from shardtune.service.lifecycle import expiry
from tests.support.service.simulated_worker import MODEL_SUMMARY, SPEC, SimulatedWorker, measurement, quietly

SSE = {"accept": "text/event-stream"}


@pytest.fixture
def study_id(client):
    """A complete study of three trials."""
    worker = SimulatedWorker(client, behave=quietly).register()
    study_id = client.post("/v1/studies", json=SPEC | {"budget": {"max_trials": 3}}).json()["study_id"]
    worker.work()
    return study_id


def read(client, study_id, **params):
    answer = client.get(f"/v1/studies/{study_id}/events", params=params)
    answer.raise_for_status()
    return answer.json()


def parsed(text):
    """The events of a server-sent stream: (id, type, data)."""
    actual = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            actual.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return actual


@pytest.mark.wide_on_postgres
def test_every_change_has_its_event(client, study_id):
    page = read(client, study_id, limit=1000)
    events = page["events"]
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "study.created" and events[-1]["type"] == "study.complete" and page["is_last"]
    count = Counter(event["type"] for event in events)
    assert set(count) <= set(EVENT_TYPES)
    trials = client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    attempts = sum(len(run["attempts"]) for trial in trials for run in trial["runs"])
    assert count["trial.created"] == count["trial.running"] == count["trial.complete"] == len(trials) == 3
    # And the profile's, which belongs to no trial.
    assert count["run.leased"] == count["run.ended"] == attempts + 1
    reported = [event["data"] for event in events if event["type"] == "study.best_changed"]
    speeds = [data["tokens_per_s_per_gpu"] for data in reported]
    assert speeds == sorted(set(speeds)), "told once each, and faster each time"
    fastest = max(trials, key=lambda trial: trial["tokens_per_s_per_gpu"])
    assert (reported[-1]["trial_number"], speeds[-1]) == (fastest["number"], fastest["tokens_per_s_per_gpu"])


@pytest.mark.wide_on_postgres
def test_pages_follow_each_other(client, study_id):
    everything = read(client, study_id, limit=1000)["events"]
    collected, after = [], 0
    while True:
        page = read(client, study_id, after=after, limit=7)
        collected += page["events"]
        if page["is_last"]:
            break
        after = page["next_after"]
    assert collected == everything


def test_stream_of_an_ended_study_resumes_after_the_last_id_and_ends(client, study_id):
    everything = read(client, study_id, limit=1000)["events"]
    response = client.get(f"/v1/studies/{study_id}/events", headers=SSE)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert [data for _, _, data in parsed(response.text)] == everything
    other_response = client.get(f"/v1/studies/{study_id}/events", headers=SSE | {"last-event-id": "5"})
    assert next((number, kind) for number, kind, _ in parsed(other_response.text)) == (6, everything[5]["type"])
    nothing = client.get(f"/v1/studies/{study_id}/events", headers=SSE | {"last-event-id": str(len(everything))})
    assert nothing.status_code == 204


def test_a_lost_attempt_and_its_retry_are_told(quick_client, context, clock):
    worker = SimulatedWorker(quick_client).register()
    study_id = quick_client.post("/v1/studies", json=SPEC).json()["study_id"]
    worker.report(worker.lease(), MODEL_SUMMARY).raise_for_status()
    worker.lease()
    clock.turn(context.settings.lease_s + 1)
    expiry.sweep(context)
    worker.report(worker.lease(), measurement(1000)).raise_for_status()
    reported = [(event["type"], event["data"].get("end")) for event in read(quick_client, study_id)["events"]]
    at = reported.index(("run.ended", "worker_lost"))
    assert reported[at + 1][0] == "trial.waiting" and ("run.ended", "complete") in reported[at:]


@pytest.mark.parametrize("wrong", ["x", "-1", "99999999999", "1.5"])
def test_bad_last_event_id_is_rejected(quick_client, wrong):
    SimulatedWorker(quick_client).register()
    study_id = quick_client.post("/v1/studies", json=SPEC).json()["study_id"]
    answer = quick_client.get(f"/v1/studies/{study_id}/events", headers=SSE | {"last-event-id": wrong})
    assert answer.status_code == 422 and "Last-Event-ID" in answer.json()["detail"]


def test_unknown_study_has_no_events(quick_client):
    assert quick_client.get("/v1/studies/study-nope/events").json()["code"] == "unknown_study"
