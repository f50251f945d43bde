"""Studies that name a target larger than what their worker has."""

import json

import pytest

from shardtune.service.studies import wait_for_worker
from tests.support.service.scenarios import THREE_BACKENDS, WORKLOAD, answered_study, create, run_study, tune
from tests.support.service.simulated_worker import (
    CLUSTER,
    FINGERPRINT,
    MODEL_SUMMARY,
    SPEC,
    SimulatedWorker,
    measurement,
    quietly,
)
from tests.support.service.target_comparisons import projected_study

TARGET = {"target": "4x2", "workload": WORKLOAD | {"global_batch": 32}}
"""Four nodes of two ranks; the two ranks of the worker have a quarter of the global batch."""


def finished(client, **changes):
    """Finished study with a target."""
    study_id = tune(client, **(TARGET | THREE_BACKENDS | changes))
    return client.get(f"/v1/studies/{study_id}").json()


@pytest.fixture
def sqlite_start(request, sqlite_start, sqlite_after):
    """Begin with the finished study where a test names it."""
    return sqlite_after(projected_study) if "study" in request.fixturenames else sqlite_start


@pytest.fixture
def study(quick_client):
    """Finished study with a target, which the service's database begins with."""
    return quick_client.get(f"/v1/studies/{answered_study(quick_client)}").json()


def target_question(**changes):
    """Query for the best configuration on the target."""
    cluster = CLUSTER.model_copy(update={"nodes": 4})
    workload = WORKLOAD | {"global_batch": 32}
    asked = {"model": "llama-tiny", "cluster": cluster.model_dump_json(), "workload": json.dumps(workload)}
    return asked | {"match": "exact"} | changes


def test_a_study_measures_the_work_of_one_rank_of_its_target_and_projects_what_it_measured(client):
    study = finished(client)
    assert study["state"] == "complete", study["reason"]
    assert study["spec"]["workload"]["global_batch"] == 8
    assert study["spec"]["target"]["nodes"] == 4 and study["spec"]["target"]["global_batch"] == 32
    result = study["result"]
    assert result["verdict"] == "confirmed"
    projection = result["projection"]
    assert projection["verdict"] == "projected" and projection["measured_gpus"] == 2
    assert projection["cluster"]["nodes"] == 4 and projection["global_batch"] == 32
    best = projection["best"]
    assert best["tokens_per_s_per_gpu"]["low"] < best["tokens_per_s_per_gpu"]["expected"]
    assert [row["gpus"] for row in projection["sizes"]] == [2, 4, 6, 8]
    assert best["curve"][0]["evidence"] == "measured"
    trials = client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    measured = {trial["number"] for trial in trials if trial["state"] == "complete"}
    assert {row["trial_number"] for row in (best, *projection["runners_up"])} <= measured


@pytest.mark.answered
def test_a_study_without_a_target_has_no_projection(quick_client):
    study_id = answered_study(quick_client)
    study = quick_client.get(f"/v1/studies/{study_id}").json()
    assert study["spec"]["target"] is None and study["result"]["projection"] is None


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"target": "1x2"}, "target", "is what the cluster has"),
        ({"target": "1x1"}, "target", "at least as many nodes"),
        ({"target": "10000000x1"}, "target", "at most 100000 GPUs"),
        ({"target": {"nodes": 10_000_000}}, "target.nodes", "100000"),
        ({"target": "4x2xh100"}, "target.gpu", "is not the cluster's kind"),
        ({"target": "4x2", "workload": WORKLOAD | {"global_batch": 30}}, "workload.global_batch", "try 24 or 32"),
        ({"target": "4x2", "space": {"knobs": {"tensor_parallel": [4]}}}, "space.knobs.tensor_parallel", "at most 2"),
        ({"target": {"nodes": 4, "gpu_per_node": 2}}, "target.gpu_per_node", "gpus_per_node"),
    ],
)
def test_a_target_that_cannot_be_projected_to_is_rejected_with_its_field(quick_client, changes, field, words):
    SimulatedWorker(quick_client).register()
    answer = quick_client.post("/v1/studies", json=SPEC | {"workload": TARGET["workload"]} | changes)
    assert answer.status_code == 422, answer.text
    assert field in {error["field"] for error in answer.json()["errors"]}, answer.text
    assert words in answer.text
    assert quick_client.get("/v1/studies").json()["studies"] == []


@pytest.mark.wide_on_postgres
def test_a_projected_answer_is_served_only_to_who_accepts_projections(client):
    study = finished(client)
    withheld = client.get("/v1/best", params=target_question())
    assert withheld.status_code == 404 and withheld.json()["code"] == "unknown_best"
    answer = client.get("/v1/best", params=target_question(projections="true"))
    assert answer.status_code == 200, answer.text
    best = answer.json()
    projection = study["result"]["projection"]
    assert best["match"] == "projected" and best["verdict"] == "projected" and best["speedup"] is None
    assert best["best"]["config"] == projection["best"]["config"] and best["best"]["runs"] == 0
    assert best["cluster"]["nodes"] == 4 and best["workload"]["global_batch"] == 32
    assert best["confidence"]["level"] == "medium" and "projected from 2 to 8 GPUs" in best["confidence"]["reasons"][0]
    high = client.get("/v1/best", params=target_question(projections="true", lowest_confidence="high"))
    assert high.status_code == 404


def test_what_was_measured_is_served_as_before_to_who_accepts_projections(quick_client, study):
    measured = {"model": "llama-tiny", "cluster": CLUSTER.model_dump_json(), "workload": json.dumps(WORKLOAD)}
    answers = [quick_client.get("/v1/best", params=measured | more).json() for more in ({}, {"projections": "true"})]
    for answer in answers:
        assert answer["match"] == "exact" and answer["verdict"] == study["result"]["verdict"]
        assert answer["projection"] is None
    other = target_question(projections="true", cluster=CLUSTER.model_copy(update={"nodes": 8}).model_dump_json())
    assert quick_client.get("/v1/best", params=other).status_code == 404


def test_files_for_the_target_have_its_nodes_and_its_batch(quick_client, study):
    export = quick_client.get(f"/v1/studies/{study['study_id']}/export", params={"which": "target"})
    assert export.status_code == 200, export.text
    task = json.loads(export.json()["files"]["config.json"])
    assert task["workload"]["global_batch"] == 32
    assert "as Shardtune projected it" in export.json()["files"]["launch.sbatch"]
    sizes = json.loads(export.json()["files"]["sizes.json"])
    assert [row["nodes"] for row in sizes] == [1, 2, 3, 4] and sizes[-1]["config"]["strategy"]
    served = quick_client.get("/v1/best", params=target_question(projections="true", format="launch.sbatch"))
    assert served.text == export.json()["files"]["launch.sbatch"]


def test_sizes_for_launchers_have_one_row_for_each_number_of_nodes(quick_client):
    study = finished(quick_client, target="4x4", workload=WORKLOAD | {"global_batch": 64})
    assert [row["nodes"] for row in study["result"]["projection"]["sizes"]] == [1, 1, 2, 3, 4]
    export = quick_client.get(f"/v1/studies/{study['study_id']}/export", params={"which": "target"})
    sizes = json.loads(export.json()["files"]["sizes.json"])
    assert [(row["nodes"], row["gpus"]) for row in sizes] == [(1, 4), (2, 8), (3, 12), (4, 16)]


@pytest.mark.answered
def test_a_study_without_a_projection_exports_no_target(quick_client):
    study_id = answered_study(quick_client)
    answer = quick_client.get(f"/v1/studies/{study_id}/export", params={"which": "target"})
    assert answer.status_code == 409 and "names no target" in answer.json()["detail"]


def test_the_page_of_a_study_shows_its_target_without_scripts(quick_client, study):
    page = quick_client.get(f"/studies/{study['study_id']}").text
    section = page[page.index('id="projection"') :]
    assert "On the target" in section and "projected" in section
    assert 'id="chart-projection"' in section and "4 nodes of 2 CPU ranks" in section
    waiting = create(quick_client, **(TARGET | THREE_BACKENDS))
    assert "follows the verdict" in quick_client.get(f"/studies/{waiting}").text


def test_a_model_that_nobody_can_predict_keeps_its_measured_answer_and_says_why_nothing_is_projected(quick_client):
    worker = SimulatedWorker(quick_client, behave=quietly).register()
    study_id = create(quick_client, **(TARGET | THREE_BACKENDS))
    worker.report(worker.lease(), MODEL_SUMMARY.model_copy(update={"forward_flops_per_token": None}))
    worker.work()
    study = quick_client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete" and study["result"]["projection"] is None
    assert any("nothing is projected to the target: no step" in note for note in study["result"]["notes"])


def test_an_extended_study_projects_again(quick_client, study):
    study_id = study["study_id"]
    answer = quick_client.post(f"/v1/studies/{study_id}:extend", json={"add_trials": 2})
    assert answer.status_code == 200, answer.text
    SimulatedWorker(quick_client, behave=quietly).register().work()
    again = quick_client.get(f"/v1/studies/{study_id}").json()["result"]
    assert again["projection"]["projected"] >= study["result"]["projection"]["projected"]


def test_a_study_run_again_keeps_the_batch_of_its_target(quick_client, study):
    again = quick_client.post("/v1/studies", json=study["spec"])
    assert again.status_code == 201, again.text
    assert again.json()["spec"] == study["spec"]


@pytest.mark.parametrize(("gpu", "is_known"), [("Homemade 9000", False), ("NVIDIA H100 80GB HBM3", True)])
def test_a_study_that_waited_says_as_it_begins_that_its_target_lacks_rates(quick_client, context, gpu, is_known):
    cluster = CLUSTER.model_copy(update={"device": "cuda", "gpu": gpu})
    named = {"cluster": cluster.model_dump(mode="json"), "wait_for_worker_s": 3600.0}
    study_id = create(quick_client, **TARGET | named)
    fingerprint = FINGERPRINT.model_copy(update={"device": "cuda", "gpu": gpu})
    SimulatedWorker(quick_client, cluster=cluster, fingerprint=fingerprint).register()
    assert wait_for_worker.begin_or_fail_waiting(context) == 1
    study = quick_client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "running"
    lacking = [note for note in study["warnings"] if "nothing will be projected to the target" in note]
    assert bool(lacking) != is_known, study
    assert is_known or "`shardtune measure-hardware`" in lacking[0]


def test_a_projected_best_that_was_never_checked_to_resume_is_noted(quick_client):
    def behave(_lease, task):
        # On two ranks ZeRO is hardly faster; over four nodes its exchanges cost more than DDP's.
        return measurement(1003.0 if task.config.backend == "zero" else 1000.0)

    study, _ = run_study(quick_client, behave, **TARGET | THREE_BACKENDS)
    result = study["result"]
    projected, recommended = (answer["trial_number"] for answer in (result["projection"]["best"], result["best"]))
    assert projected != recommended
    assert any(f"trial {projected} was never checked to resume" in note for note in result["projection"]["notes"])


def test_the_export_of_a_target_says_why_there_is_none(quick_client):
    worker = SimulatedWorker(quick_client, behave=quietly).register()
    study_id = create(quick_client, **TARGET | THREE_BACKENDS)
    export = f"/v1/studies/{study_id}/export"

    def refusal():
        answer = quick_client.get(export, params={"which": "target"})
        assert answer.status_code == 409
        return answer.json()["detail"]

    assert "is running, and nothing is projected before its verdict" in refusal()
    worker.report(worker.lease(), MODEL_SUMMARY.model_copy(update={"forward_flops_per_token": None}))
    worker.work()
    assert "nothing is projected to the target: no step of the model was counted" in refusal()
    assert quick_client.post(f"/v1/studies/{study_id}:extend", json={"add_trials": 2}).status_code == 200
    assert quick_client.post(f"/v1/studies/{study_id}:cancel").status_code == 200
    assert "nothing is projected to the target: no step of the model was counted" in refusal()
    other = create(quick_client, **TARGET | THREE_BACKENDS)
    assert quick_client.post(f"/v1/studies/{other}:cancel").status_code == 200
    export = f"/v1/studies/{other}/export"
    assert "is cancelled" in refusal()


@pytest.mark.parametrize(("target", "words"), [(4, None), (0, "at least 1"), (True, "target")])
def test_a_target_may_be_a_number_of_nodes(quick_client, target, words):
    SimulatedWorker(quick_client).register()
    answer = quick_client.post("/v1/studies", json=SPEC | TARGET | {"target": target})
    assert answer.status_code == (201 if words is None else 422), answer.text
    assert words is None or words in answer.text
    assert words is not None or answer.json()["spec"]["target"]["nodes"] == 4
