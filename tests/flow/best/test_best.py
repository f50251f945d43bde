"""Best configurations: exact, nearest with every difference, files, resolving, and what people decide."""

import json
import re

import pytest

from tests.support.service.scenarios import (
    ASK,
    WORKLOAD,
    answered_study,
    bearer,
    best,
    decide,
    in_threads,
    make_key,
    tune,
)
from tests.support.service.simulated_worker import CLUSTER, FINGERPRINT, SPEC, SimulatedWorker, quietly


@pytest.mark.wide_on_postgres
def test_exact_answer_by_target_and_by_key(client):
    assert client.get("/v1/best", params=ASK).json()["code"] == "unknown_best"
    study_id = tune(client)
    best_answer = best(client)
    assert (best_answer["match"], best_answer["differences"], best_answer["freshness"]) == ("exact", [], "fresh")
    assert best_answer["confidence"] == {"level": "high", "reasons": []}
    assert best_answer["study_id"] == study_id and best_answer["best"]["config"]["strategy"]["kind"] == "fsdp2"
    assert best(client, target_key=best_answer["target_key"])["recommendation_id"] == best_answer["recommendation_id"]
    other_seed = ASK | {"workload": json.dumps(WORKLOAD | {"seed": 7})}
    assert best(client, **other_seed)["match"] == "exact"


@pytest.mark.answered
def test_nearest_answer_names_every_difference_and_lowers_the_confidence(quick_client):
    near = best(quick_client, **ASK | {"workload": json.dumps(WORKLOAD | {"global_batch": 16})})
    assert near["match"] == "nearest"
    assert near["differences"] == [{"field": "workload.global_batch", "requested_value": 16, "known_value": 8}]
    assert near["confidence"]["level"] == "medium"
    bigger = CLUSTER.model_copy(update={"gpus_per_node": 4}).model_dump_json()
    assert quick_client.get("/v1/best", params=ASK | {"cluster": bigger}).json()["code"] == "unknown_best"
    low = {"lowest_confidence": "low"}
    assert best(quick_client, **ASK | low | {"cluster": bigger})["confidence"]["level"] == "low"
    assert quick_client.get("/v1/best", params=ASK | low | {"model": "llama-2-7b"}).status_code == 404, "a toy's answer"
    named = quick_client.get("/v1/best", params=ASK | {"cluster": "8xh100"})
    assert (named.status_code, named.json()["code"]) == (404, "unknown_best"), "a cluster's short form is read"
    assert "'nothing'" in quick_client.get("/v1/best", params=ASK | {"cluster": "8xnothing"}).json()["detail"]
    exact = quick_client.get("/v1/best", params=ASK | {"cluster": bigger, "match": "exact"})
    assert (exact.status_code, exact.json()["code"]) == (404, "unknown_best")
    assert quick_client.get("/v1/best", params=ASK | {"model": "gpt2"}).status_code == 404


@pytest.mark.answered
def test_what_would_be_given_for_less_confidence_is_named(quick_client):
    bigger = ASK | {"cluster": CLUSTER.model_copy(update={"gpus_per_node": 4}).model_dump_json()}
    rejected = quick_client.get("/v1/best", params=bigger).json()
    assert rejected["code"] == "unknown_best"
    assert "measured one with another cluster.gpus_per_node" in rejected["detail"]
    assert ", and lowest_confidence=low returns its recommendation" in rejected["detail"]
    exact = quick_client.get("/v1/best", params=bigger | {"match": "exact"}).json()
    assert "match=nearest&lowest_confidence=low returns its recommendation" in exact["detail"]
    nothing = quick_client.get("/v1/best", params=ASK | {"model": "llama-2-7b"}).json()["detail"]
    assert "lowest_confidence" not in nothing, "a toy's answer is given to nobody"


@pytest.mark.answered
def test_local_means_the_workers_cluster_and_without_workers_the_recommendation_s(quick_client, clock):
    study_id = best(quick_client)["study_id"]
    assert best(quick_client, **ASK | {"cluster": "local"})["study_id"] == study_id
    clock.turn(1000)
    gone = quick_client.get("/v1/best", params=ASK | {"cluster": "local", "match": "exact"}).json()
    assert gone["study_id"] == study_id and quick_client.get("/v1/workers").json()["workers"][0]["is_live"] is False


def test_local_is_rejected_where_there_is_neither_a_worker_nor_an_answer(quick_client):
    answer = quick_client.get("/v1/best", params=ASK | {"cluster": "local"})
    assert (answer.status_code, answer.json()["code"]) == (422, "no_worker")
    assert "nothing is recommended here; spell the cluster out" in answer.json()["detail"]


@pytest.mark.answered
@pytest.mark.parametrize("cluster", ["local", CLUSTER.model_dump()])
def test_what_is_known_is_resolved_without_a_worker_too(quick_client, clock, cluster):
    study_id = best(quick_client)["study_id"]
    clock.turn(1000)
    answer = quick_client.post("/v1/best:resolve", json={"study": SPEC | {"cluster": cluster}})
    assert (answer.status_code, answer.json()["best"]["study_id"]) == (200, study_id)
    other = SPEC | {"cluster": cluster, "model": "gpt2-tiny"}
    assert quick_client.post("/v1/best:resolve", json={"study": other}).json()["code"] == "no_worker"


@pytest.mark.answered
def test_files_by_format_and_by_accept(quick_client):
    by_name = quick_client.get("/v1/best", params=ASK | {"format": "launch.sh"})
    by_accept = quick_client.get("/v1/best", params=ASK, headers={"accept": "text/x-shellscript"})
    assert by_name.text == by_accept.text and by_name.text.startswith("#!")
    assert by_name.headers["content-type"].startswith("text/x-shellscript")
    assert quick_client.get("/v1/best", params=ASK | {"format": "../x"}).status_code == 422
    rejected = quick_client.get("/v1/best", params=ASK, headers={"accept": "image/png"})
    assert (rejected.status_code, rejected.json()["code"]) == (406, "not_acceptable")


@pytest.mark.answered
def test_every_file_has_a_media_type_of_the_document(quick_client):
    read = quick_client.get("/openapi.json").json()["paths"]["/v1/best"]["get"]
    described = set(read["responses"]["200"]["content"])
    names = quick_client.get("/v1/best", params=ASK | {"format": "none"}).json()["errors"][0]["message"]
    files = re.findall(r"[a-z_-]+\.[a-z]+", names)
    assert {"launch.sh", "accelerate.yaml", "train_snippet.py"} < set(files)
    for name in files:
        answer = quick_client.get("/v1/best", params=ASK | {"format": name})
        media = answer.headers["content-type"].partition(";")[0]
        assert answer.status_code == 200 and media in described - {"application/json"}, name


@pytest.mark.answered
def test_unchanged_answer_is_not_sent_again_however_old(quick_client, clock):
    tag = quick_client.get("/v1/best", params=ASK).headers["etag"]
    clock.turn(3600)
    again = quick_client.get("/v1/best", params=ASK, headers={"If-None-Match": tag})
    assert again.status_code == 304 and again.headers["etag"] == tag
    assert best(quick_client)["age_s"] == 3600


@pytest.mark.answered
def test_faster_answer_takes_over_and_slower_one_does_not(quick_client):
    first = answered_study(quick_client)
    tune(quick_client, speed=0.5)
    assert best(quick_client)["study_id"] == first
    faster = tune(quick_client, speed=2.0)
    best_answer = best(quick_client)
    assert best_answer["study_id"] == faster
    history = quick_client.get("/v1/best:history", params={"target_key": best_answer["target_key"]}).json()["decisions"]
    assert [entry["action"] for entry in history] == [
        "recommended",
        "proposed",
        "kept",
        "proposed",
        "recommended",
        "proposed",
    ]
    states = [entry["state"] for entry in quick_client.get("/v1/recommendations").json()["recommendations"]]
    assert sorted(states) == ["recommended", "retired", "retired"]


@pytest.mark.answered
def test_other_software_is_another_target(quick_client):
    newer = FINGERPRINT.model_copy(update={"torch": "2.14.0"})
    old = best(quick_client)
    tune(quick_client, speed=0.5, fingerprint=newer)
    assert best(quick_client, target_key=old["target_key"])["fingerprint"]["torch"] == "2.13.0"
    assert best(quick_client)["fingerprint"]["torch"] == "2.14.0", "the newest, where none is asked for"


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_pin_holds_and_rollback_goes_back(client):
    first, key = best(client)["study_id"], best(client)["target_key"]
    assert decide(client, key, "pin", note="night run").json()["state"] == "recommended"
    second = tune(client, speed=2.0)
    assert best(client)["study_id"] == first and best(client)["is_pinned"]
    assert decide(client, key, "approve").json()["study_id"] == second
    assert best(client)["study_id"] == second
    assert decide(client, key, "rollback").json()["study_id"] == first
    assert best(client)["study_id"] == first
    decide(client, key, "unpin")
    assert not best(client)["is_pinned"]
    history = client.get("/v1/best:history", params={"target_key": key}).json()["decisions"]
    assert [entry["action"] for entry in history[:3]] == ["unpinned", "rolled_back", "approved"]
    assert history[-3]["note"] == "night run" and history[-3]["by"] == "local"


@pytest.mark.answered
def test_only_the_recommendation_that_is_pinned_can_be_unpinned(quick_client):
    """It was recorded that the other one was unpinned, and the present one was no longer pinned."""
    key = best(quick_client)["target_key"]
    tune(quick_client, speed=2.0)
    decide(quick_client, key, "pin").raise_for_status()
    listed = quick_client.get("/v1/recommendations").json()["recommendations"]
    present, former = (
        next(item["recommendation_id"] for item in listed if item["state"] == state)
        for state in ("recommended", "retired")
    )
    rejected = decide(quick_client, key, "unpin", recommendation_id=former)
    assert rejected.json()["code"] == "nothing_to_decide" and present in rejected.json()["detail"]
    assert best(quick_client)["is_pinned"]
    decide(quick_client, key, "unpin", recommendation_id=present).raise_for_status()
    assert not best(quick_client)["is_pinned"]


@pytest.mark.answered
def test_a_decision_names_the_key_that_made_it(client):
    """Names of keys are not unique: a key may even have the name of the service."""
    key = best(client)["target_key"]
    first = bearer(make_key(client, "admin"))
    second = client.post("/v1/keys", json={"name": "admin", "scopes": ["admin"]}, headers=first).json()
    posing = client.post("/v1/keys", json={"name": "service", "scopes": ["admin"]}, headers=first).json()
    for created, action in ((second, "pin"), (posing, "unpin")):
        client.headers = bearer(created)
        decide(client, key, action).raise_for_status()
    decisions = client.get("/v1/best:history", params={"target_key": key}).json()["decisions"]
    assert [(item["by"], item["key_id"]) for item in decisions[:3]] == [
        ("service", posing["key"]["key_id"]),
        ("admin", second["key"]["key_id"]),
        ("service", None),
    ]


def test_project_that_demands_approval_serves_nothing_unapproved(quick_client):
    quick_client.put("/v1/projects/default", json={"requires_approval": True})
    study_id = tune(quick_client)
    rejected = quick_client.get("/v1/best", params=ASK).json()
    assert rejected["code"] == "awaits_approval" and study_id in rejected["detail"]
    resolved = quick_client.post("/v1/best:resolve", json={"study": SPEC})
    assert (resolved.status_code, resolved.json()["code"]) == (404, "awaits_approval")
    (proposal,) = quick_client.get("/v1/recommendations?state=proposed").json()["recommendations"]
    key = proposal["target_key"]
    assert decide(quick_client, key, "rollback").json()["code"] == "nothing_to_decide"
    body = quick_client.get("/v1/best", params={"target_key": key}).json()
    assert body["code"] == "awaits_approval" and key in body["detail"]
    assert "target_key" in quick_client.post("/v1/best:approve", json={}).json()["detail"]
    quick_client.post("/v1/best:approve", json={"target_key": key}).raise_for_status()
    assert best(quick_client)["study_id"] == study_id
    tune(quick_client, speed=2.0)
    assert decide(quick_client, key, "reject").json()["state"] == "rejected"
    assert best(quick_client)["study_id"] == study_id
    assert decide(quick_client, "0" * 32, "pin").json()["code"] == "unknown_best"


def test_who_asks_to_resolve_what_was_rejected_is_told_so(quick_client):
    quick_client.put("/v1/projects/default", json={"requires_approval": True})
    worker = SimulatedWorker(quick_client, behave=quietly).register()
    study_id = quick_client.post("/v1/best:resolve", json={"study": SPEC}).json()["study"]["study_id"]
    worker.work()
    (proposal,) = quick_client.get("/v1/recommendations?state=proposed").json()["recommendations"]
    decide(quick_client, proposal["target_key"], "reject").raise_for_status()
    rejected = quick_client.post("/v1/best:resolve", json={"study": SPEC})
    assert (rejected.status_code, rejected.json()["code"]) == (409, "answer_rejected") and study_id in rejected.text
    quick_client.delete(f"/v1/studies/{study_id}").raise_for_status()
    assert quick_client.post("/v1/best:resolve", json={"study": SPEC}).json()["study"]["study_id"] != study_id


def test_operator_demands_approval_in_every_project(open_service, sqlite_url, monkeypatch):
    monkeypatch.setenv("SHARDTUNE_REQUIRES_APPROVAL", "true")
    client = open_service(sqlite_url)
    tune(client)
    assert client.get("/v1/best", params=ASK).json()["code"] == "awaits_approval"
    (proposal,) = client.get("/v1/recommendations?state=proposed").json()["recommendations"]
    decide(client, proposal["target_key"], "approve").raise_for_status()
    assert best(client)["study_id"] == proposal["study_id"]


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_decision_about_something_else_than_was_seen_is_rejected(client):
    key = best(client)["target_key"]

    def tags():
        named = {"target_key": key}
        return [client.get(path, params=named).headers["etag"] for path in ("/v1/best", "/v1/best:history")]

    def pin(tag):
        return client.post("/v1/best:pin", params={"target_key": key}, headers={"If-Match": tag})

    observed_tags = tags()
    assert pin(observed_tags[0]).status_code == 200
    rejected = [pin(tag) for tag in [*observed_tags, '"other"']]
    assert [(answer.status_code, answer.json()["code"]) for answer in rejected] == [(412, "precondition_failed")] * 3
    assert [pin(tags()[place]).status_code for place in (0, 1)] == [200, 200]
    assert pin(f"{observed_tags[0]}, {tags()[1]}").status_code == 200
    before = tags()
    tune(client, speed=2.0)
    assert pin(before[1]).status_code == 412, "a proposal came meanwhile"
    assert pin(before[0]).status_code == 200, "what is served is the same"
    assert pin("*").status_code == 200


def test_resolve_starts_one_study_however_many_ask(client):
    worker = SimulatedWorker(client, behave=quietly).register()
    body = {"study": SPEC}
    answers = []
    in_threads(lambda _: answers.append(client.post("/v1/best:resolve", json=body)), range(6))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["study"]["study_id"] for answer in answers}) == 1
    assert answers[0].headers["location"].startswith("/v1/studies/study-")
    worker.work()
    response = client.post("/v1/best:resolve", json=body)
    assert response.status_code == 200 and response.json()["best"]["match"] == "exact"
    assert len(client.get("/v1/studies").json()["studies"]) == 1


def test_resolve_does_not_repeat_what_failed(quick_client):
    worker = SimulatedWorker(quick_client).register()
    body = {"study": SPEC | {"budget": {"max_trials": 1}}}
    named = {"Idempotency-Key": "job-1"}
    first = quick_client.post("/v1/best:resolve", json=body, headers=named)
    worker.work()
    again = quick_client.post("/v1/best:resolve", json=body)
    assert (again.status_code, again.json()["code"]) == (409, "study_failed")
    assert first.json()["study"]["state"] == "running"


@pytest.mark.parametrize(
    "params",
    [{}, {"model": "llama-tiny"}, ASK | {"workload": "{}"}, ASK | {"cluster": "["}, {"target_key": "x"}],
)
def test_incomplete_question_is_rejected_with_the_field(quick_client, params):
    answer = quick_client.get("/v1/best", params=params)
    assert answer.status_code == 422 and answer.json()["errors"][0]["field"], answer.text
