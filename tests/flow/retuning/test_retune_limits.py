"""Limits of a schedule to its retunes: windows, worth and GPU-seconds."""

import pytest

from shardtune.service.retuning import challenge_steps, driver, queue
from tests.flow.helpers.retuning_lab import ask
from tests.support.service.scenarios import best
from tests.support.service.simulated_worker import SimulatedWorker

pytestmark = pytest.mark.answered


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
