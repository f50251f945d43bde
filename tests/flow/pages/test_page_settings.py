"""Webhooks on the settings page, and what the workers page says of a machine."""

import re
from datetime import UTC, datetime, timedelta

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measurements import CompiledFrames
from shardtune.service.pages.figures import relative
from tests.support.service.page_reader import HTML, page, token
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, measurement


def make_webhook(client, csrf: str, **changes) -> str:
    """The page after the form."""
    form = {"csrf": csrf, "url": "https://example.org/hook", "event": ["study.complete"]} | changes
    return client.post("/settings/webhooks", data=form, headers=HTML).text


def test_a_webhook_s_secret_is_shown_once(quick_client):
    csrf = token(quick_client)
    wrong = make_webhook(quick_client, csrf, url="https://127.0.0.1/hook", study="study-none")
    assert "One value needs a correction" in wrong and 'value="https://127.0.0.1/hook"' in wrong
    assert quick_client.post("/settings/webhooks", data={"url": "https://example.org"}).status_code == 403
    assert quick_client.get("/v1/webhooks").json() == []
    new_make_webhook = make_webhook(quick_client, csrf)
    secret = re.search(r"whsec_[\w+/=]{40,}", new_make_webhook)
    assert secret and "study.complete" in new_make_webhook
    hook = quick_client.get("/v1/webhooks").json()[0]
    listed = quick_client.get("/settings", headers=HTML).text
    assert f"/settings/webhooks/{hook['webhook_id']}" in listed and secret[0] not in listed


def test_a_webhook_is_for_what_matters_unless_more_is_asked_for(quick_client):
    """A study has hundreds of events: its end, and what becomes of answers, is what a person wants to be told."""
    ticked = re.findall(r'name="event" value="([\w.]+)" checked', quick_client.get("/settings", headers=HTML).text)
    hook = quick_client.post("/v1/webhooks", json={"url": "https://example.org/hook"}).json()
    assert set(ticked) == set(hook["events"]) and "study.complete" in ticked and "best.replaced" in ticked
    assert not [event for event in ticked if event.startswith(("trial.", "run."))]


def test_a_webhook_is_tested_disabled_enabled_rotated_and_deleted(quick_client):
    recorded = {"csrf": token(quick_client)}
    make_webhook(quick_client, recorded["csrf"], event=[], url="https://nowhere.invalid/hook")
    link = f"/settings/webhooks/{quick_client.get('/v1/webhooks').json()[0]['webhook_id']}"
    assert "Nothing was sent yet" in quick_client.get(link, headers=HTML).text
    tested = quick_client.post(f"{link}/test", data=recorded, headers=HTML).text
    assert "webhook.test" in tested and "failed</span>" in tested
    SimulatedWorker(quick_client).register()
    quick_client.post("/v1/studies", json=SPEC).raise_for_status()
    assert "waiting</span>" in quick_client.get(link, headers=HTML).text
    disabled = quick_client.post(f"{link}/disable", data=recorded, headers=HTML).text
    assert "Disabled by local" in disabled and "waiting</span>" not in disabled
    assert "enabled</span>" in quick_client.post(f"{link}/enable", data=recorded, headers=HTML).text
    assert "whsec_" in quick_client.post(f"{link}/rotate", data=recorded, headers=HTML).text
    assert quick_client.post(f"{link}/nonsense", data=recorded, headers=HTML).status_code == 404
    quick_client.post(f"{link}/delete", data=recorded)
    assert quick_client.get("/v1/webhooks").json() == []
    assert quick_client.get(link, headers=HTML).status_code == 404


def test_a_machine_that_is_not_fit_is_said_to_be_on_both_pages(quick_client):
    busy = Conditions(foreign_cpu_cores=1.5)

    def behave(_lease, task):
        if task.config.backend == "ddp":
            return measurement(1000.0).model_copy(update={"conditions": busy})
        return Failure(kind=FailureKind.DEVICE, message="GPU-1 has a pending row remapping", conditions=busy)

    worker = SimulatedWorker(quick_client, behave=behave).register()
    study_id = quick_client.post("/v1/studies", json=SPEC).json()["study_id"]
    worker.do(worker.lease())
    assert "model summary of llama-tiny" in page(quick_client, "/workers")
    while lease := worker.lease():
        worker.do(lease)
        if "GPU-1" in (text := page(quick_client, "/workers")):
            break
    assert "its device is faulty" in text and "other programs kept 1.5 CPU cores busy" in text
    assert "Other programs kept 1.5 CPU cores busy" in page(quick_client, f"/studies/{study_id}/trials/0")


def test_a_trial_says_what_its_run_compiled(quick_client):
    compiled = CompiledFrames(frames=2, recompilations=1, graph_breaks=0, while_timed=0)
    worker = SimulatedWorker(
        quick_client, behave=lambda *_: measurement(1000.0).model_copy(update={"compiled": compiled})
    ).register()
    study_id = quick_client.post("/v1/studies", json=SPEC).json()["study_id"]
    worker.work()
    text = page(quick_client, f"/studies/{study_id}/trials/0")
    assert "Compiled functions" in text and "1 of them again; no graph break" in text
    run = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"][0]["runs"][0]
    assert run["measurement"]["compiled"] == {"frames": 2, "recompilations": 1, "graph_breaks": 0, "while_timed": 0}


def test_times_to_come_are_told_as_such():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    reported = [relative(now + timedelta(seconds=after), now) for after in (-7200, -60, -3, 3, 60, 300, 50 * 3600)]
    assert reported == ["2 h ago", "60 s ago", "just now", "just now", "in 60 s", "in 5 min", "in 2 days"]
