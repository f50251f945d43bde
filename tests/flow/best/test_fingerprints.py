"""Fingerprints as users read them: who had which when, what changed, what depends on it."""

import pytest

from shardtune.service.best import watch_staleness
from tests.support.service.scenarios import best, in_threads
from tests.support.service.simulated_worker import FINGERPRINT, SimulatedWorker

NEWER = FINGERPRINT.model_copy(update={"torch": "2.14.0", "driver": "560", "overridden": ("torch",)})


def listed(client, **params):
    answer = client.get("/v1/fingerprints", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["fingerprints"]


def register(client, name, fingerprint):
    return SimulatedWorker(client, name=name, fingerprint=fingerprint).register()


@pytest.mark.wide_on_postgres
def test_history_of_a_worker(client, clock):
    register(client, "a", FINGERPRINT)
    register(client, "b", FINGERPRINT)
    clock.turn(60)
    register(client, "a", FINGERPRINT)
    register(client, "a", NEWER)
    newest, oldest = listed(client)
    assert newest["is_overridden"] and newest["fingerprint"]["overridden"] == ["torch"]
    (holder,) = newest["holders"]
    assert (holder["worker"], holder["until"], holder["is_live"]) == ("a", None, True)
    assert holder["predecessor_id"] == oldest["fingerprint_id"]
    assert holder["changes"] == [{"field": "torch", "was": "2.13.0", "now": "2.14.0", "effect": "stale"}]
    spans = {(holder["worker"], holder["until"] is None) for holder in oldest["holders"]}
    assert spans == {("a", False), ("b", True)} and not oldest["is_overridden"]
    assert [record["fingerprint_id"] for record in listed(client, worker="b")] == [oldest["fingerprint_id"]]
    assert len(listed(client, current=True)) == 2
    register(client, "b", NEWER)
    assert [record["is_current"] for record in listed(client)] == [True, False]
    assert len(listed(client, current=True)) == 1


def test_pages_of_the_list(quick_client):
    for minor in range(5):
        register(quick_client, "a", FINGERPRINT.model_copy(update={"torch": f"2.{minor}.0"}))
    observed, token = [], None
    while token is not None or not observed:
        page = quick_client.get("/v1/fingerprints", params={"limit": 2} | ({"page_token": token} if token else {}))
        observed += [record["fingerprint_id"] for record in page.json()["fingerprints"]]
        token = page.json()["next_page_token"]
    assert len(observed) == len(set(observed)) == 5
    assert quick_client.get("/v1/fingerprints?page_token=x").json()["code"] == "invalid_page_token"


@pytest.mark.answered
def test_what_depends_on_a_fingerprint(client):
    key = best(client)["target_key"]
    (record,) = listed(client)
    detail = client.get(f"/v1/fingerprints/{record['fingerprint_id']}").json()
    (item,) = detail["dependents"]
    assert (item["target_key"], item["freshness"], item["changed_fields"]) == (key, "fresh", [])
    register(client, "sim", NEWER)
    watch_staleness.mark_stale_and_fresh(client.app.state.context)
    (item,) = client.get(f"/v1/fingerprints/{record['fingerprint_id']}").json()["dependents"]
    assert (item["freshness"], item["changed_fields"]) == ("stale", ["torch"])
    unknown = client.get(f"/v1/fingerprints/{'0' * 32}")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_fingerprint")


@pytest.mark.parametrize("path", ["/", "/workers"])
@pytest.mark.answered
def test_pages_mark_what_is_stale_and_what_is_declared(quick_client, path):
    register(quick_client, "sim", NEWER)
    text = quick_client.get(path).text
    assert {"/": "stale</span>", "/workers": "declared: torch"}[path] in text
    assert {"/": "torch", "/workers": "2.13.0 → 2.14.0"}[path] in text


def test_two_registrations_at_once_keep_one_present_period(client):
    register(client, "a", FINGERPRINT)
    in_threads(lambda n: register(client, "a", FINGERPRINT.model_copy(update={"torch": f"2.{n}.0"})), range(6))
    (present,) = [holder for record in listed(client) for holder in record["holders"] if holder["until"] is None]
    assert present["is_live"]


def test_a_fleet_that_brings_the_same_new_fingerprint_at_once(client):
    names = [f"node-{n}" for n in range(6)]
    for name in names:
        register(client, name, FINGERPRINT)
    in_threads(lambda name: register(client, name, NEWER), names)
    assert [len(record["holders"]) for record in listed(client)] == [6, 6]
