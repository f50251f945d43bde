"""More budget for a study: it goes on from its trials, and its verdict is renewed. And another study from its spec."""

import pytest

from shardtune.service.planning import study_plan
from tests.support.service import run_history
from tests.support.service.page_reader import page, token
from tests.support.service.scenarios import THREE_BACKENDS, answered_study, bearer, create, make_key
from tests.support.service.simulated_worker import (
    CLUSTER,
    FINGERPRINT,
    SPEC,
    SimulatedWorker,
    measurement,
    quietly,
    speed_of,
    well,
)


def extend(client, study_id, **more):
    return client.post(f"/v1/studies/{study_id}:extend", json=more)


def read(client, study_id):
    return client.get(f"/v1/studies/{study_id}").json()


def trials_of(client, study_id):
    return client.get(f"/v1/studies/{study_id}/trials?limit=500").json()["trials"]


def finished(client, behave=well, **changes):
    worker = SimulatedWorker(client, behave=behave).register()
    study_id = create(client, **changes)
    worker.work()
    assert read(client, study_id)["state"] == "complete"
    return worker, study_id


@pytest.mark.wide_on_postgres
def test_complete_study_searches_on_and_renews_its_verdict(client, clock):
    worker, study_id = finished(client, **THREE_BACKENDS)
    before, trials = read(client, study_id), trials_of(client, study_id)
    clock.turn(60)
    extended = extend(client, study_id, add_trials=6).json()
    assert (extended["state"], extended["phase"], extended["reason"]) == ("running", "search", None)
    assert extended["spec"]["budget"]["max_trials"] == 14 and extended["finished_at"] is None
    assert extended["result"] == before["result"], "the answer so far stands"
    runs = worker.work()
    after = read(client, study_id)
    assert after["state"] == "complete" and sum(after["trials"].values()) == 14
    assert [t["config"] for t in trials_of(client, study_id)[:8]] == [t["config"] for t in trials]
    assert after["result"]["speedup"]["pairs"] >= 7
    assert after["result"]["final_comparison"]["runs"] == before["result"]["final_comparison"]["runs"] + runs - 6
    best = client.get("/v1/recommendations").json()["recommendations"]
    assert [entry["state"] for entry in best] == ["recommended", "retired"] and best[0]["study_id"] == study_id
    events = client.get(f"/v1/studies/{study_id}/events?limit=500").json()["events"]
    words = [event["type"] for event in events if event["type"].startswith("study.") and "best" not in event["type"]]
    assert words.count("study.complete") == 2
    assert words.index("study.extended") == words.index("study.complete") + 1 == words.index("study.resumed") - 2
    assert run_history.faults(client.app.state.context.db) == []


def test_running_study_gets_more_in_any_phase(quick_client):
    worker = SimulatedWorker(quick_client).register()
    study_id = create(quick_client, **THREE_BACKENDS)
    extend(quick_client, study_id, add_trials=1).raise_for_status()
    for _ in range(1 + 9 + 3):
        worker.do(worker.lease())
    assert read(quick_client, study_id)["phase"] == "final_comparison"
    extended = extend(quick_client, study_id, add_trials=2).json()
    assert (extended["phase"], extended["spec"]["budget"]["max_trials"]) == ("search", 11)
    lease = worker.lease()
    assert lease.trial_number == 9, "the final comparison begins anew after the search"
    worker.do(lease)
    worker.work()
    study = read(quick_client, study_id)
    assert sum(study["trials"].values()) == 11 and study["result"]["speedup"]["pairs"] >= 7


def test_a_validation_run_under_way_ends_without_counting(quick_client):
    worker = SimulatedWorker(quick_client).register()
    study_id = create(quick_client, **THREE_BACKENDS)
    for _ in range(1 + 8):
        worker.do(worker.lease())
    fresh = worker.lease()
    extend(quick_client, study_id, add_trials=1).raise_for_status()
    worker.do(fresh)
    worker.work()
    result = read(quick_client, study_id)["result"]
    assert result["final_comparison"]["runs"] == 1 + 4 + 6 + 14 and result["speedup"]["pairs"] == 7


def test_more_pairs_alone_go_on_with_the_last_final_comparison(quick_client):
    def behave(lease, task):
        """Worker that makes every third validation run of a challenger slow and the baseline constant."""
        runs[lease.trial_number] = runs.get(lease.trial_number, 0) + 1
        if runs[lease.trial_number] == 1 or task.config.micro_batch == 1:
            return measurement(speed_of(task.config))
        return measurement(500.0 if runs[lease.trial_number] % 3 == 1 else 2000.0)

    runs = {}
    worker = SimulatedWorker(quick_client, behave=behave).register()
    study_id = create(quick_client, **THREE_BACKENDS, budget={"max_trials": 8, "max_pairs": 7})
    worker.work()
    first = read(quick_client, study_id)["result"]
    assert first["verdict"] == "undecided" and first["speedup"]["pairs"] == 7
    total = sum(runs.values())
    extended = extend(quick_client, study_id, add_pairs=13).json()
    assert (extended["state"], extended["phase"]) == ("running", "final_comparison")
    worker.work()
    result = read(quick_client, study_id)["result"]
    assert result["speedup"]["ratios"][:7] == first["speedup"]["ratios"], "they count on"
    assert sum(runs.values()) - total == 2 * (result["speedup"]["pairs"] - 7) > 0


def test_larger_budget_that_changes_nothing_is_rejected_and_says_what_would(quick_client):
    budget = {"max_trials": 8, "max_gpu_seconds": 240, "max_pairs": 20}
    worker, study_id = finished(quick_client, quietly, budget=budget)
    tag = read(quick_client, study_id)

    def rejected(code, word, **more):
        answer = extend(quick_client, study_id, **more)
        assert answer.json()["code"] == code and word in answer.json()["detail"], answer.text

    rejected("nothing_to_extend", "(240) is kept for the final comparison", add_trials=3)
    rejected("nothing_to_extend", "all 8 trials", add_gpu_seconds=60)
    rejected("nothing_to_extend", "is confirmed", add_pairs=5)
    rejected("invalid_request", "has no max_wall_seconds to raise", add_trials=3, add_wall_seconds=9)
    rejected("invalid_request", "add 80 at most", add_trials=3, add_pairs=100)
    rejected("invalid_request", "give add_trials")
    rejected("invalid_request", "add_trials", add_trials=0)
    assert read(quick_client, study_id) == tag
    extended = extend(quick_client, study_id, add_trials=3, add_gpu_seconds=600).json()
    assert extended["spec"]["budget"] == tag["spec"]["budget"] | {"max_trials": 11, "max_gpu_seconds": 840}
    worker.work()
    assert sum(read(quick_client, study_id)["trials"].values()) == 11


@pytest.mark.parametrize("speed", [950.0, 700.0])
def test_pairs_that_would_not_run_are_rejected(quick_client, speed):
    """`not_faster` is decided by its pairs: the study was reopened, and ended at once with the same result."""
    baseline = {"strategy": {"kind": "ddp"}, "micro_batch": 1}

    def behave(lease, _):
        return measurement(1000.0 if lease.trial_number == 0 else speed)

    _, study_id = finished(quick_client, behave, baseline=baseline, budget={"max_trials": 3})
    before = read(quick_client, study_id)
    assert before["result"]["verdict"] == "not_faster"
    rejected = extend(quick_client, study_id, add_pairs=3)
    assert (rejected.status_code, rejected.json()["code"]) == (409, "nothing_to_extend")
    assert "add_pairs (3) would run no pair" in rejected.json()["detail"] and "give add_trials" in rejected.text
    assert read(quick_client, study_id) == before


TWO_CONFIGURATIONS = {
    "backends": ["ddp"],
    "knobs": {
        "micro_batch": [2, 4],
        "malloc": "default",
        "activation_checkpointing": "none",
        "bucket_cap_mb": 25,
        "gradient_as_bucket_view": False,
        "grad_sync": "last",
    },
}


@pytest.mark.parametrize(
    ("behave", "verdict"), [(quietly, "confirmed"), (lambda *_: measurement(1000.0), "not_faster")]
)
def test_a_decided_study_that_has_tried_everything_is_advised_neither_trials_nor_pairs(quick_client, behave, verdict):
    """Each rejection named the other extension, which was rejected, too."""
    _, study_id = finished(quick_client, behave, space=TWO_CONFIGURATIONS)
    study = read(quick_client, study_id)
    assert (study["reason_code"], study["result"]["verdict"]) == ("all_tried", verdict)
    trials, pairs = extend(quick_client, study_id, add_trials=2), extend(quick_client, study_id, add_pairs=2)
    for rejected in (trials, pairs):
        assert (rejected.status_code, rejected.json()["code"]) == (409, "nothing_to_extend")
        assert "give add_" not in rejected.json()["detail"]
    assert trials.json()["detail"].endswith("; clone it with another space")


def test_failed_study_that_lacked_a_second_backend_goes_on(quick_client):
    worker = SimulatedWorker(quick_client, behave=quietly).register()
    study_id = create(quick_client, budget={"max_trials": 1})
    worker.work()
    assert read(quick_client, study_id)["state"] == "failed"
    assert extend(quick_client, study_id, add_pairs=5).json()["code"] == "nothing_to_extend"
    extend(quick_client, study_id, add_trials=5).raise_for_status()
    worker.work()
    assert read(quick_client, study_id)["state"] == "complete"


def test_the_reason_of_a_failure_does_not_stay_beside_a_later_answer(quick_client, monkeypatch):
    worker = SimulatedWorker(quick_client, behave=quietly).register()
    study_id = create(quick_client, **THREE_BACKENDS)
    while read(quick_client, study_id)["phase"] != "final_comparison":
        worker.do(worker.lease())

    lease = worker.lease()

    def broken(*_):
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(study_plan, "plan_next_step", broken)
        worker.do(lease)
    failed = read(quick_client, study_id)
    assert (failed["state"], failed["reason_code"]) == ("failed", "internal_error")
    extend(quick_client, study_id, add_pairs=1).raise_for_status()
    worker.work()
    after = read(quick_client, study_id)
    assert (after["state"], after["reason"], after["reason_code"]) == ("complete", None, None)


@pytest.mark.answered
def test_an_error_of_the_planner_leaves_the_answer_of_an_extended_study(quick_client, monkeypatch):
    study_id = answered_study(quick_client)
    before = read(quick_client, study_id)["result"]

    def broken(*_):
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(study_plan, "plan_next_step", broken)
        extend(quick_client, study_id, add_trials=2).raise_for_status()
    failed = read(quick_client, study_id)
    assert (failed["state"], failed["reason_code"]) == ("failed", "internal_error")
    assert failed["result"] == before and quick_client.get(f"/v1/studies/{study_id}/best").json() == before
    text = quick_client.get(f"/studies/{study_id}").text
    assert "Extending it failed, and its earlier answer stays: Confirmed" in text and "RuntimeError: broken" in text
    pairs = extend(quick_client, study_id, add_pairs=2)
    assert (pairs.status_code, pairs.json()["code"]) == (409, "nothing_to_extend")
    assert "left its final comparison when trials were added" in pairs.json()["detail"]
    extend(quick_client, study_id, add_trials=1).raise_for_status()
    assert read(quick_client, study_id)["state"] == "running"


@pytest.mark.wide_on_postgres
def test_a_lookup_of_the_target_gets_the_extended_study(client):
    worker = SimulatedWorker(client, behave=quietly).register()
    body = {"study": SPEC | {"budget": {"max_trials": 1}}}
    study_id = client.post("/v1/best:resolve", json=body).json()["study"]["study_id"]
    worker.work()
    assert client.post("/v1/best:resolve", json=body).json()["code"] == "study_failed"
    extend(client, study_id, add_trials=5).raise_for_status()
    response = client.post("/v1/best:resolve", json=body)
    assert (response.status_code, response.json()["study"]["study_id"]) == (202, study_id)
    worker.work()
    assert client.post("/v1/best:resolve", json=body).json()["best"]["study_id"] == study_id


def test_an_extended_study_leaves_its_target_to_the_study_that_was_started_for_it_meanwhile(client):
    worker = SimulatedWorker(client, behave=quietly).register()
    body = {"study": SPEC | {"budget": {"max_trials": 1}}}
    restored = client.post("/v1/best:resolve", json=body).json()["study"]["study_id"]
    worker.work()
    client.delete(f"/v1/studies/{restored}").raise_for_status()
    newer = client.post("/v1/best:resolve", json=body).json()["study"]["study_id"]
    client.post(f"/v1/studies/{restored}:undelete").raise_for_status()
    assert extend(client, restored, add_trials=5).raise_for_status().json()["state"] == "running"
    assert client.post("/v1/best:resolve", json=body).json()["study"]["study_id"] == newer
    worker.work()
    assert read(client, restored)["state"] == "complete"


@pytest.mark.answered
def test_what_cannot_go_on_says_why(quick_client, clock):
    study_id = answered_study(quick_client)
    clock.turn(3600)
    gone = extend(quick_client, study_id, add_trials=2).json()
    assert gone["code"] == "no_worker" and "no live worker" in gone["detail"]
    newer = FINGERPRINT.model_copy(update={"torch": "2.14.0"})
    SimulatedWorker(quick_client, fingerprint=newer).register()
    assert "torch 2.14.0 instead of 2.13.0" in extend(quick_client, study_id, add_trials=2).json()["detail"]
    other = create(quick_client)
    quick_client.post(f"/v1/studies/{other}:cancel").raise_for_status()
    cancelled = extend(quick_client, other, add_trials=2)
    assert (cancelled.status_code, cancelled.json()["code"]) == (409, "study_ended")
    assert extend(quick_client, "study-none", add_trials=2).json()["code"] == "unknown_study"


@pytest.mark.answered
def test_cancelled_extension_leaves_the_answer_there_was(quick_client):
    study_id = answered_study(quick_client)
    before = read(quick_client, study_id)["result"]
    extend(quick_client, study_id, add_trials=2).raise_for_status()
    assert "Being extended; so far: Confirmed" in quick_client.get(f"/studies/{study_id}").text
    quick_client.post(f"/v1/studies/{study_id}:cancel").raise_for_status()
    assert read(quick_client, study_id)["state"] == "cancelled"
    assert quick_client.get(f"/v1/studies/{study_id}/best").json() == before


@pytest.mark.answered
def test_extension_is_repeatable_and_conditional_and_counts_as_a_study(client):
    study_id = answered_study(client)
    tag = client.get(f"/v1/studies/{study_id}").headers["etag"]
    url, body = f"/v1/studies/{study_id}:extend", {"add_trials": 2}
    stale = client.post(url, json=body, headers={"If-Match": '"other"'})
    assert stale.status_code == 412
    client.put("/v1/projects/default", json={"quotas": {"running_studies": 0}})
    assert client.post(url, json=body).json()["code"] == "quota_running_studies"
    client.put("/v1/projects/default", json={})
    named = {"Idempotency-Key": "more", "If-Match": tag}
    answers = [client.post(url, json=body, headers=named) for _ in range(2)]
    assert answers[0].json() == answers[1].json() and answers[1].headers["idempotency-replayed"] == "true"
    assert read(client, study_id)["spec"]["budget"]["max_trials"] == 10


@pytest.mark.wide_on_postgres
def test_clone_takes_the_spec_and_nothing_else(client):
    worker, study_id = finished(client, quietly, seed=3)
    client.put("/v1/projects/b", json={})
    url = f"/v1/studies/{study_id}:clone"
    named = {"Idempotency-Key": "again"}
    answers = [client.post(url, headers=named) for _ in range(2)]
    plain = answers[0].json()
    assert answers[0].status_code == 201 and answers[1].json() == plain
    assert answers[0].headers["location"] == f"/v1/studies/{plain['study_id']}" != f"/v1/studies/{study_id}"
    assert plain["spec"] == read(client, study_id)["spec"] and plain["trials"] == {} and plain["result"] is None
    changes = {"seed": 4, "budget": {"max_trials": 5}, "cluster": CLUSTER.model_dump(mode="json")}
    changed = client.post(url, json=changes, params={"new_id": "nightly", "project": "b"}).json()
    assert (changed["study_id"], changed["project_id"], changed["spec"]["seed"]) == ("b.nightly", "b", 4)
    assert changed["spec"]["budget"]["max_trials"] == 5 and changed["spec"]["workload"] == plain["spec"]["workload"]
    worker.work()
    assert read(client, "b.nightly")["state"] == read(client, plain["study_id"])["state"] == "complete"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"budget": {"max_trials": 0}}, "budget.max_trials"),
        ({"sede": 1}, "sede"),
        ({"workload": {"global_batch": 7, "sequence_length": 64}}, "workload.global_batch"),
        ({"cluster": "far"}, "cluster"),
    ],
)
def test_wrong_change_of_a_clone_is_named(quick_client, changes, field):
    SimulatedWorker(quick_client).register()
    study_id = create(quick_client)
    answer = quick_client.post(f"/v1/studies/{study_id}:clone", json=changes)
    assert answer.status_code == 422 and answer.json()["errors"][0]["field"] == field, answer.text


def test_clone_can_drop_the_baseline_and_needs_to_see_the_study(quick_client):
    SimulatedWorker(quick_client).register()
    study_id = create(quick_client, baseline={"strategy": {"kind": "zero", "stage": 1}, "micro_batch": 2})
    url = f"/v1/studies/{study_id}:clone"
    assert quick_client.post(url, json={"seed": 1}).json()["spec"]["baseline"] is not None
    assert quick_client.post(url, json={"baseline": None}).json()["spec"]["baseline"] is None
    admin = bearer(make_key(quick_client, "admin"))
    stranger = bearer(make_key(quick_client, "studies:write", project="b", **admin))
    assert quick_client.post(url, headers=stranger).json()["code"] == "unknown_study"


@pytest.mark.answered
def test_page_extends_a_study(quick_client):
    worker, study_id = SimulatedWorker(quick_client, behave=quietly).register(), answered_study(quick_client)
    assert "Extend search" in page(quick_client, f"/studies/{study_id}")
    sent = {"csrf": token(quick_client), "add_trials": "2"}
    quick_client.post(f"/studies/{study_id}/extend", data=sent).raise_for_status()
    assert "Extend search" not in page(quick_client, f"/studies/{study_id}")
    worker.work()
    assert sum(read(quick_client, study_id)["trials"].values()) == 10
