"""An extended study whose new runs leave no answer takes its recommendation with it."""

import pytest

from shardtune.api_schemas.trials.failures import FailureKind
from tests.support.service.scenarios import ASK, THREE_BACKENDS, best, create, decide
from tests.support.service.simulated_worker import SimulatedWorker, failure, measurement, quietly, speed_of

STUDY = THREE_BACKENDS | {"baseline": {"strategy": {"kind": "ddp"}, "micro_batch": 1}}


def only_ddp(lease, task, speed=1.0):
    """Trials of other backends need too much memory, so that none confirms the losses of DDP."""
    if task.config.backend != "ddp":
        return failure(FailureKind.OOM, "CUDA out of memory")
    run = quietly(lease, task)
    return run.model_copy(update={"tokens_per_s_per_gpu": speed * run.tokens_per_s_per_gpu})


def contradicting(lease, task):
    """Trials of other backends fit, and train something else than DDP."""
    if task.config.backend == "ddp":
        return only_ddp(lease, task)
    return measurement(speed_of(task.config), loss={"zero": 9.0, "fsdp2": 7.0}[task.config.backend])


def read(client, study_id):
    return client.get(f"/v1/studies/{study_id}").json()


def extend(client, study_id, worker, behave, state):
    worker.behave = behave
    client.post(f"/v1/studies/{study_id}:extend", json={"add_trials": 6}).raise_for_status()
    worker.work(200)
    study = read(client, study_id)
    assert study["state"] == state, study["reason"]
    return study


def decisions(client, target_key):
    answer = client.get("/v1/best:history", params={"target_key": target_key}).raise_for_status()
    return answer.json()["decisions"]


@pytest.fixture
def worker(quick_client):
    return SimulatedWorker(quick_client, behave=only_ddp).register()


@pytest.fixture
def study_id(quick_client, worker):
    study_id = create(quick_client, **STUDY | {"budget": {"max_trials": 6}})
    worker.work()
    assert read(quick_client, study_id)["result"]["verdict"] == "confirmed"
    return study_id


def test_nothing_is_recommended_that_later_runs_contradict(quick_client, worker, study_id):
    served = best(quick_client)
    failed = extend(quick_client, study_id, worker, contradicting, "failed")
    assert failed["reason_code"] == "no_agreement" and failed["result"] is None
    assert quick_client.get("/v1/best", params=ASK).status_code == 404
    newest = decisions(quick_client, served["target_key"])[0]
    assert (newest["action"], newest["recommendation_id"]) == ("withdrawn", served["recommendation_id"])
    assert newest["note"].startswith("its study was extended and failed: ")
    (row,) = quick_client.get("/v1/recommendations").json()["recommendations"]
    assert row["state"] == "rejected"


def test_an_earlier_result_of_the_same_study_does_not_come_back(quick_client, worker, study_id):
    extend(quick_client, study_id, worker, only_ddp, "complete")
    assert len(quick_client.get("/v1/recommendations").json()["recommendations"]) == 2
    extend(quick_client, study_id, worker, contradicting, "failed")
    assert quick_client.get("/v1/best", params=ASK).status_code == 404
    rows = quick_client.get("/v1/recommendations").json()["recommendations"]
    assert {row["state"] for row in rows} == {"rejected"}


def test_the_recommendation_of_another_study_comes_back(quick_client, worker, study_id):
    served = best(quick_client)
    faster = create(quick_client, **STUDY | {"budget": {"max_trials": 6}})

    worker.behave = lambda lease, task: only_ddp(lease, task, speed=2.0)
    worker.work()
    assert best(quick_client)["study_id"] == faster
    extend(quick_client, faster, worker, contradicting, "failed")
    assert best(quick_client)["recommendation_id"] == served["recommendation_id"]


def test_a_contradicted_answer_does_not_come_back_after_the_one_that_replaced_it(quick_client, worker, study_id):
    faster = create(quick_client, **STUDY | {"budget": {"max_trials": 6}})
    worker.behave = lambda lease, task: only_ddp(lease, task, speed=2.0)
    worker.work()
    assert best(quick_client)["study_id"] == faster
    extend(quick_client, study_id, worker, contradicting, "failed")
    assert best(quick_client)["study_id"] == faster, "the answer of the other study is not contradicted"
    quick_client.delete(f"/v1/studies/{faster}", params={"withdraw": True}).raise_for_status()
    assert quick_client.get("/v1/best", params=ASK).status_code == 404


def test_what_an_administrator_pinned_stays_and_its_history_says_why(quick_client, worker, study_id):
    served = best(quick_client)
    assert decide(quick_client, served["target_key"], "pin").status_code == 200
    extend(quick_client, study_id, worker, contradicting, "failed")
    assert best(quick_client)["recommendation_id"] == served["recommendation_id"]
    newest = decisions(quick_client, served["target_key"])[0]
    assert newest["action"] == "inconclusive" and newest["note"].startswith("stays, because an administrator pinned")
