"""What a comparison on the target may change in the answers that are served, and when."""

import json
from datetime import timedelta

import pytest
from sqlalchemy import select

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.db.queries import best, studies
from shardtune.db.tables.webhooks import DeliveryRow
from tests.support.service.scenarios import answered_study, decide
from tests.support.service.simulated_worker import SimulatedWorker
from tests.support.service.target_comparisons import (
    choices,
    confirming_request,
    exported_config,
    projected_study,
    projection_of,
    read,
    run_there,
    target_question,
)


@pytest.fixture
def sqlite_start(request, sqlite_start, sqlite_after):
    """Begin with the projected study where a test names it."""
    return sqlite_after(projected_study) if "projected" in request.fixturenames else sqlite_start


@pytest.fixture
def projected(quick_client):
    """Study with a projection to four nodes, which the service's database begins with."""
    return read(quick_client, answered_study(quick_client))


def proposal_of(client, study):
    rows = client.get("/v1/recommendations", params={"state": "proposed"}).json()["recommendations"]
    (row,) = [row for row in rows if row["study_id"] == study["study_id"]]
    return row


def messages(client):
    """Bodies of the webhook messages about answers for targets, in any order."""
    with client.app.state.context.db.read() as session:
        rows = session.scalars(select(DeliveryRow).where(DeliveryRow.type == "best.target_changed")).all()
        return [json.loads(row.body)["data"] for row in rows]


def test_webhooks_learn_of_each_change_of_the_answer_for_the_target(quick_client, projected):
    client, (first, second) = quick_client, choices(projected)
    hook = client.post("/v1/webhooks", json={"url": "https://ci.example.com/hook"})
    assert hook.status_code == 201 and "best.target_changed" in hook.json()["events"], hook.text
    request = confirming_request(client, projected)
    changing = run_there(client, request, (800.0, 1000.0))
    (changed,) = messages(client)
    assert changed == {
        "study_id": projected["study_id"],
        "project_id": "default",
        "target_key": changed["target_key"],
        "nodes": 4,
        "gpus_per_node": 2,
        "description": second["description"],
        "tokens_per_s_per_gpu": 1000.0,
        "verdict": "changed",
        "confirming_study_id": changing["study_id"],
    }
    served = client.get("/v1/best", params={"target_key": changed["target_key"]})
    assert served.status_code == 200, served.text
    # The same again changes nothing; the other way round does.
    run_there(client, request, (800.0, 1000.0))
    assert len(messages(client)) == 1
    confirming = run_there(client, request, (1200.0, 1000.0))
    (confirmed,) = [row for row in messages(client) if row != changed]
    assert (confirmed["verdict"], confirmed["description"]) == ("confirmed", first["description"])
    assert client.delete(f"/v1/studies/{confirming['study_id']}", params={"withdraw": "true"}).status_code == 200
    (withdrawn,) = [row for row in messages(client) if row not in (changed, confirmed)]
    assert withdrawn["verdict"] == "projected" and withdrawn["confirming_study_id"] == confirming["study_id"]
    assert withdrawn["tokens_per_s_per_gpu"] == first["tokens_per_s_per_gpu"]["expected"]


def test_a_comparison_that_waits_for_approval_changes_nothing_until_it_is_approved(quick_client, projected):
    client, (first, second) = quick_client, choices(projected)
    assert client.put("/v1/projects/default", json={"requires_approval": True}).status_code == 200
    there = run_there(client, confirming_request(client, projected), (800.0, 1000.0))
    question = target_question(projections="true")

    def served():
        best = client.get("/v1/best", params=question).json()
        return projection_of(client, projected)["verdict"], exported_config(client, projected), best["best"]["config"]

    as_before = ("projected", first["config"], first["config"])
    assert served() == as_before
    target_key = proposal_of(client, there)["target_key"]
    assert decide(client, target_key, "reject").status_code == 200
    assert served() == as_before
    again = run_there(client, confirming_request(client, projected), (800.0, 1000.0))
    assert served() == as_before
    assert decide(client, target_key, "approve").status_code == 200
    assert served() == ("changed", second["config"], second["config"])
    assert projection_of(client, projected)["confirmation"]["study_id"] == again["study_id"]


@pytest.mark.parametrize("kind", [FailureKind.CRASH, FailureKind.DEADLINE, FailureKind.SETUP])
def test_a_choice_that_failed_for_another_reason_than_memory_decides_nothing(quick_client, projected, kind):
    there = run_there(quick_client, confirming_request(quick_client, projected), (kind, 1000.0))
    assert there["state"] == "complete", there["reason"]
    projection = projection_of(quick_client, projected)
    assert (projection["verdict"], projection["confirmation"]["outcome"]) == ("projected", "undecided")
    assert exported_config(quick_client, projected) == choices(projected)[0]["config"]


def test_a_choice_that_never_ran_decides_nothing(quick_client, projected):
    request = confirming_request(quick_client, projected) | {"budget": {"max_trials": 1}}
    there = run_there(quick_client, request, (2000.0, 1000.0))
    assert there["state"] == "complete", there["reason"]
    projection = projection_of(quick_client, projected)
    assert (projection["verdict"], projection["confirmation"]["outcome"]) == ("projected", "undecided")
    assert [row["config"] for row in projection["confirmation"]["measured"]] == [choices(projected)[1]["config"]]


def test_an_undecided_repeat_leaves_the_earlier_decision(quick_client, projected):
    request = confirming_request(quick_client, projected)
    first = run_there(quick_client, request, (800.0, 1000.0))
    run_there(quick_client, request, (FailureKind.CRASH, 1000.0))
    projection = projection_of(quick_client, projected)
    assert projection["verdict"] == "changed" and projection["confirmation"]["study_id"] == first["study_id"]


def test_a_longer_search_keeps_what_was_found_about_the_same_choices(quick_client, projected):
    run_there(quick_client, confirming_request(quick_client, projected), (800.0, 1000.0))
    before = projection_of(quick_client, projected)
    path = f"/v1/studies/{projected['study_id']}:extend"
    assert quick_client.post(path, json={"add_trials": 1}).status_code == 200
    SimulatedWorker(quick_client).register().work()
    after = projection_of(quick_client, projected)
    assert sum(read(quick_client, projected["study_id"])["trials"].values()) > sum(projected["trials"].values())
    # Its speeds may be projected anew, but the two choices are the same.
    assert after["best"]["config"] == before["best"]["config"]
    assert after["runners_up"][0]["config"] == before["runners_up"][0]["config"]
    assert (after["verdict"], after["confirmation"]) == ("changed", before["confirmation"])


def test_a_withdrawn_comparison_leaves_the_projection_as_it_was(quick_client, projected):
    client, question = quick_client, target_question(projections="true")
    there = run_there(client, confirming_request(client, projected), (800.0, 1000.0))
    assert projection_of(client, projected)["verdict"] == "changed"
    assert client.delete(f"/v1/studies/{there['study_id']}", params={"withdraw": "true"}).status_code == 200
    assert projection_of(client, projected) == projected["result"]["projection"]
    served = client.get("/v1/best", params=question).json()
    assert (served["match"], served["best"]["config"]) == ("projected", choices(projected)[0]["config"])


def test_a_served_projection_says_what_the_study_says(quick_client, projected):
    client, question = quick_client, target_question(projections="true")
    there = run_there(client, confirming_request(client, projected), (800.0, 1000.0))
    (row,) = [
        row
        for row in client.get("/v1/recommendations", params={"state": "recommended"}).json()["recommendations"]
        if row["study_id"] == there["study_id"]
    ]
    # Without a recommendation of its own for the target, what is served comes from the projection.
    with client.app.state.context.db.write() as session:
        target = best.lock(session, row["project_id"], row["target_key"])
        target.recommended, target.recommended_id = None, None
    served = client.get("/v1/best", params=question).json()
    assert served["match"] == "projected" and served["projection"] == projection_of(client, projected)
    assert served["best"]["config"] == exported_config(client, projected) == choices(projected)[1]["config"]
    assert f"study {there['study_id']} compared the first two choices: changed" in served["confidence"]["reasons"][0]


def test_a_study_that_is_newer_than_the_comparison_is_not_confirmed_by_it(quick_client, projected):
    request = confirming_request(quick_client, projected)
    with quick_client.app.state.context.db.write() as session:
        studies.lock(session, projected["study_id"]).created_at += timedelta(days=1)
    there = run_there(quick_client, request, (800.0, 1000.0))
    assert there["result"]["verdict"] == "not_faster"
    assert projection_of(quick_client, projected)["confirmation"] is None
