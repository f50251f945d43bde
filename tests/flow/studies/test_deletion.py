"""Deleted studies are in no list, run nothing, and can be taken back; what they measured stays."""

import pytest

from tests.support.service import run_history
from tests.support.service.page_reader import page
from tests.support.service.scenarios import ASK, THREE_BACKENDS, answered_study, bearer, create, decide, make_key, tune
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, measurement, quietly


def delete(client, study_id, **params):
    return client.delete(f"/v1/studies/{study_id}", params=params)


def listed(client, **params):
    return [study["study_id"] for study in client.get("/v1/studies", params=params).json()["studies"]]


@pytest.mark.answered
def test_a_deleted_study_is_in_no_list_and_comes_back(client):
    study_id = answered_study(client)
    deleted = delete(client, study_id).json()
    assert (deleted["state"], deleted["deleted_at"]) == ("complete", "2026-01-01T00:00:00Z")
    assert (listed(client), listed(client, deleted=True)) == ([], [study_id])
    assert study_id not in page(client, "/studies")
    served = client.get("/v1/best", params=ASK)
    assert served.json()["study_id"] == study_id, "what is served stays served"
    assert client.get("/v1/best", params=ASK | {"format": "launch.sh"}).status_code == 200
    assert client.post(f"/v1/studies/{study_id}:extend", json={"add_trials": 1}).json()["code"] == "study_deleted"
    assert delete(client, study_id).json() == deleted, "a repeated request changes nothing"
    assert client.post(f"/v1/studies/{study_id}:undelete").json()["deleted_at"] is None
    assert listed(client) == [study_id]


@pytest.mark.wide_on_postgres
def test_a_deleted_study_s_runs_stop_and_nothing_of_them_counts(client):
    worker = SimulatedWorker(client).register()
    study_id = create(client)
    worker.do(worker.lease())
    lease = worker.lease()
    other = create(client, seed=1)
    assert delete(client, study_id).json()["state"] == "cancelled"
    assert worker.heartbeat(lease)["action"] == "stop"
    assert worker.report(lease, measurement(1000)).json()["code"] == "lease_lost"
    assert worker.lease().study_id == other
    body = client.get(f"/v1/studies/{study_id}").json()
    assert body["trials"] == {"cancelled": 1} and body["result"] is None
    assert run_history.faults(client.app.state.context.db, only=[study_id]) == []


@pytest.mark.answered
def test_with_its_answer_withdrawn_the_previous_one_is_recommended(quick_client):
    first = answered_study(quick_client)
    second = tune(quick_client, speed=1.2, seed=1)
    assert quick_client.get("/v1/best", params=ASK).json()["study_id"] == second
    delete(quick_client, second, withdraw=True).raise_for_status()
    body = quick_client.get("/v1/best", params=ASK).json()
    assert body["study_id"] == first
    decisions = quick_client.get("/v1/best:history", params={"target_key": body["target_key"]}).json()["decisions"]
    assert [decision["action"] for decision in decisions[:2]] == ["rolled_back", "withdrawn"]
    rejected = decide(quick_client, body["target_key"], "rollback")
    assert rejected.json()["code"] == "nothing_to_decide", "a withdrawn answer is not gone back to"
    assert "withdrawn" in page(quick_client, f"/studies/{first}"), "the log of decisions names the withdrawal"


@pytest.mark.answered
def test_a_withdrawn_answer_that_was_replaced_before_does_not_come_back(quick_client):
    first = answered_study(quick_client)
    second = tune(quick_client, speed=1.2, seed=1)
    delete(quick_client, first, withdraw=True).raise_for_status()
    assert quick_client.get("/v1/best", params=ASK).json()["study_id"] == second
    delete(quick_client, second, withdraw=True).raise_for_status()
    assert quick_client.get("/v1/best", params=ASK).json()["code"] == "unknown_best"


@pytest.mark.answered
@pytest.mark.parametrize("decision", ["pin", "approve"])
def test_an_administrator_s_answer_is_withdrawn_by_an_administrator_only(quick_client, decision):
    admin = bearer(make_key(quick_client, "admin"))
    quick_client.headers.update(admin)
    study_id = answered_study(quick_client)
    key = quick_client.get("/v1/best", params=ASK).json()["target_key"]
    newest = quick_client.get("/v1/recommendations", params={"target_key": key}).json()["recommendations"][0]
    decide(quick_client, key, decision, recommendation_id=newest["recommendation_id"]).raise_for_status()
    member = bearer(make_key(quick_client, "studies:read", "studies:write", **admin))
    rejected = quick_client.delete(f"/v1/studies/{study_id}", params={"withdraw": True}, headers=member)
    assert (rejected.status_code, rejected.json()["code"]) == (403, "scope_missing")
    assert "undo an administrator's decision" in rejected.json()["detail"]
    assert quick_client.get(f"/v1/studies/{study_id}").json()["deleted_at"] is None
    assert quick_client.get("/v1/best", params=ASK).json()["study_id"] == study_id
    quick_client.delete(f"/v1/studies/{study_id}", headers=member).raise_for_status()
    delete(quick_client, study_id, withdraw=True).raise_for_status()
    assert quick_client.get("/v1/best", params=ASK).json()["code"] == "unknown_best"


@pytest.mark.answered
def test_a_member_withdraws_what_nobody_has_decided_on(quick_client):
    admin = bearer(make_key(quick_client, "admin"))
    quick_client.headers.update(admin)
    study_id = answered_study(quick_client)
    member = bearer(make_key(quick_client, "studies:read", "studies:write", **admin))
    quick_client.delete(f"/v1/studies/{study_id}", params={"withdraw": True}, headers=member).raise_for_status()
    assert quick_client.get("/v1/best", params=ASK).json()["code"] == "unknown_best"


@pytest.mark.answered
def test_with_the_only_answer_withdrawn_the_target_is_resolved_anew(quick_client):
    study_id = answered_study(quick_client)
    key = quick_client.get("/v1/best", params=ASK).json()["target_key"]
    delete(quick_client, study_id, withdraw=True).raise_for_status()
    assert quick_client.get("/v1/best", params=ASK).json()["code"] == "unknown_best"
    anew = quick_client.post("/v1/best:resolve", json={"study": SPEC})
    assert anew.status_code == 202 and anew.json()["study"]["study_id"] != study_id
    quick_client.post(f"/v1/studies/{study_id}:undelete").raise_for_status()
    again = quick_client.get("/v1/recommendations", params={"target_key": key}).json()["recommendations"][0]
    approved = decide(quick_client, key, "approve", recommendation_id=again["recommendation_id"])
    assert approved.json()["state"] == "recommended"


@pytest.mark.parametrize("subject", ["failed", "complete"])
def test_a_resolving_study_that_was_deleted_does_not_answer_any_more(quick_client, subject):
    worker = SimulatedWorker(quick_client, behave=quietly).register()
    requested = SPEC | THREE_BACKENDS if subject == "complete" else SPEC | {"space": {"knobs": {"micro_batch": 1}}}
    study_id = quick_client.post("/v1/best:resolve", json={"study": requested}).json()["study"]["study_id"]
    if subject == "complete":
        worker.work()
    delete(quick_client, study_id, withdraw=True).raise_for_status()
    anew = quick_client.post("/v1/best:resolve", json={"study": requested}).json()["study"]
    assert anew["study_id"] != study_id and anew["state"] == "running"
