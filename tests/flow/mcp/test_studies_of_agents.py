"""Studies that agents start: with a budget, with the confirmation of an estimate, and once for each."""

import pytest

from shardtune.service.http.errors import Conflict
from shardtune.service.mcp import mount
from tests.support.service.agent_client import ask, text
from tests.support.service.gpu_studies import tune_on_gpus
from tests.support.service.scenarios import create
from tests.support.service.simulated_worker import SimulatedWorker, quietly

STUDY = {"model": "llama-tiny", "sequence_length": 64, "global_batch": 8, "cluster": "local"}


@pytest.mark.answered
def test_a_study_costs_nothing_without_budget_and_confirmation(service):
    SimulatedWorker(service).register()

    def studies() -> int:
        return len(service.get("/v1/studies").json()["studies"])

    before = studies()
    rejected = ask(service, "studies_create", **STUDY)
    assert rejected.is_error and text(rejected).startswith("max_gpu_seconds (missing): ")
    estimate = ask(service, "studies_create", **STUDY, max_gpu_seconds=600).structured_content
    assert estimate["state"] == "needs_confirmation" and estimate["study"] is None and studies() == before
    most = "at most 0.166667 GPU-hours by the budget (and the rest of a run that is under way then)"
    assert most in estimate["summary"]
    assert estimate["gpu_hours"] is None or estimate["gpu_hours"]["high"] <= 0.1667
    invented = ask(service, "studies_create", **STUDY, max_gpu_seconds=600, confirmation="yes")
    assert invented.is_error and text(invented).startswith("confirmation (yes) does not belong to this request")
    dearer = ask(service, "studies_create", **STUDY, max_gpu_seconds=9000, confirmation=estimate["confirmation"])
    assert dearer.is_error and studies() == before
    created = ask(
        service, "studies_create", **STUDY, max_gpu_seconds=600, confirmation=estimate["confirmation"]
    ).structured_content
    stored = service.get(f"/v1/studies/{created['study']['study_id']}").json()
    assert created["state"] == "created" and stored["spec"]["budget"]["max_gpu_seconds"] == 600


def test_the_first_answer_names_the_missing_worker_before_it_asks_for_a_budget(service):
    """An agent asked its user for a budget, and learnt then that nothing could run the study."""
    missing = "is not offered by any live worker: no worker is registered; start one with `shardtune worker`"
    local = ask(service, "studies_create", **STUDY)
    assert local.is_error and text(local).startswith("cluster (local) ") and missing in text(local)
    assert "max_gpu_seconds" not in text(local)
    elsewhere = STUDY | {"cluster": "8xh100"}
    obstacle, budget = text(ask(service, "studies_create", **elsewhere)).splitlines()
    assert missing in obstacle and budget.startswith("max_gpu_seconds (missing): ")
    estimate = ask(service, "studies_create", **elsewhere, max_gpu_seconds=600).structured_content
    assert estimate["summary"].startswith(f"It cannot start now: {obstacle}. Estimate of a study")
    SimulatedWorker(service).register()
    assert text(ask(service, "studies_create", **STUDY)).startswith("max_gpu_seconds (missing): ")
    here = ask(service, "studies_create", **STUDY, max_gpu_seconds=600).structured_content
    assert here["summary"].startswith("Estimate of a study")


def test_the_first_answer_names_a_used_up_quota_before_it_asks_for_a_budget(service):
    """An agent asked its user for a budget and a confirmation, and learnt then that the project may start nothing."""
    SimulatedWorker(service).register()
    service.put("/v1/projects/default", json={"quotas": {"running_studies": 1}}).raise_for_status()
    create(service)
    used_up = "project (default) may run 1 studies at once; wait for one to end, pause or cancel one"
    elsewhere = STUDY | {"cluster": "8xh100"}
    quota, missing, budget = text(ask(service, "studies_create", **elsewhere)).splitlines()
    assert quota == used_up and "is not offered by any live worker" in missing and budget.startswith("max_gpu_seconds")
    estimate = ask(service, "studies_create", **STUDY, max_gpu_seconds=600).structured_content
    assert estimate["summary"].startswith(f"It cannot start now: {used_up}. Estimate of a study")


def test_an_agent_goes_from_a_question_to_the_files_of_a_tuned_answer(service):
    worker = SimulatedWorker(service, behave=quietly).register()
    job = {name: STUDY[name] for name in ("model", "cluster", "sequence_length", "global_batch")}
    unknown = ask(service, "best", **job)
    assert unknown.is_error, "nothing was measured yet"
    mine = {"strategy": {"kind": "ddp"}}
    explained = ask(service, "explain_config", **job, config=mine).structured_content
    assert explained["configuration"]["config"] == mine and explained["configuration"]["memory"]["basis"] == "predicted"

    study = STUDY | {"baseline": mine, "max_gpu_seconds": 600, "max_trials": 4}
    estimate = ask(service, "studies_create", **study).structured_content
    created = ask(service, "studies_create", **study, confirmation=estimate["confirmation"]).structured_content
    study_id = created["study"]["study_id"]
    assert ask(service, "studies_status", study_id=study_id).structured_content["study"]["state"] != "complete"
    worker.work()

    ended = ask(service, "studies_status", study_id=study_id).structured_content
    result = ended["result"]
    assert ended["study"]["state"] == "complete" and result["verdict"] == "confirmed"
    assert result["baseline"]["config"] == mine and result["speedup"]["basis"] == "measured"
    assert result["speedup"]["low"] > 1
    known = ask(service, "best", **job, match="exact").structured_content
    assert known["study_id"] == study_id and known["best"]["config"] == result["best"]["config"]
    files = ask(service, "export", study_id=study_id).structured_content["files"]
    assert {"launch.sh", "train_snippet.py", "config.json"} <= set(files)


@pytest.mark.answered
def test_an_agent_limits_the_pairs_of_a_study_as_the_command_line_does(service):
    SimulatedWorker(service).register()
    asked = STUDY | {"max_gpu_seconds": 800}
    rejected = ask(service, "studies_create", **asked, max_pairs=6)
    assert rejected.is_error and text(rejected).startswith("budget.max_pairs (6): must be at least 7")
    default = ask(service, "studies_create", **asked).structured_content["confirmation"]
    code = ask(service, "studies_create", **asked, max_pairs=7).structured_content["confirmation"]
    other = ask(service, "studies_create", **asked, max_pairs=7, confirmation=default)
    assert other.is_error, "more pairs were agreed to"
    study = ask(service, "studies_create", **asked, max_pairs=7, confirmation=code).structured_content["study"]
    assert service.get(f"/v1/studies/{study['study_id']}").json()["spec"]["budget"]["max_pairs"] == 7


@pytest.mark.answered
def test_a_confirmation_creates_one_study_however_often_it_is_sent(service):
    SimulatedWorker(service).register()
    asked = STUDY | {"max_gpu_seconds": 700}
    codes = [ask(service, "studies_create", **asked).structured_content["confirmation"] for _ in range(2)]
    created = [
        ask(service, "studies_create", **asked, confirmation=code).structured_content["study"]["study_id"]
        for code in (codes[0], codes[0], codes[1])
    ]
    assert codes[0] != codes[1] and created[0] == created[1] != created[2]
    stored = [study["spec"]["budget"]["max_gpu_seconds"] for study in service.get("/v1/studies").json()["studies"]]
    assert stored.count(700) == 2


@pytest.mark.answered
def test_answers_say_what_a_study_trains(service):
    SimulatedWorker(service).register()
    adapted = STUDY | {"cluster": "8xh100", "adapter": {"kind": "lora", "rank": 4}, "max_gpu_seconds": 600}
    estimate = ask(service, "studies_create", **adapted)
    assert not estimate.is_error, text(estimate)
    names = {"workload": {"sequence_length": 64, "global_batch": 8, "adapter": {"kind": "lora", "rank": 4}}}
    study = create(service, cluster="8xh100", wait_for_worker_s=600.0, **names)
    shown = ask(service, "studies_status", study_id=study).structured_content["study"]
    listed = {
        row["study_id"]: row["trained"] for row in ask(service, "studies_list", limit=50).structured_content["studies"]
    }
    assert shown["trained"] == listed.pop(study) == "LoRA r=4" and "all weights" in listed.values()
    job = {name: STUDY[name] for name in ("model", "sequence_length", "global_batch", "cluster")}
    assert ask(service, "best", **job).structured_content["trained"] == "all weights"
    other = ask(service, "best", **job, adapter="lora", match="exact")
    assert other.is_error


@pytest.mark.answered
def test_a_study_of_samples_of_several_lengths_is_created_and_told_apart(service):
    SimulatedWorker(service).register()
    data = {"lengths": [16, 16, 40, 64], "layout": "grouped"}
    asked = STUDY | {"data": data, "attention": "eager", "max_gpu_seconds": 600}
    code = ask(service, "studies_create", **asked).structured_content["confirmation"]
    study = ask(service, "studies_create", **asked, confirmation=code).structured_content["study"]
    assert study["samples"] == "16 to 64 tokens (mean 34), grouped"
    workload = service.get(f"/v1/studies/{study['study_id']}").json()["spec"]["workload"]
    assert workload["data"]["lengths"] == [[16, 2], [40, 1], [64, 1]] and workload["attention"] == "eager"
    job = {name: STUDY[name] for name in ("model", "sequence_length", "global_batch", "cluster")}
    assert ask(service, "best", **job).structured_content["samples"] == "equal lengths"
    other = ask(service, "best", **job, data=data, match="exact")
    assert other.is_error, "it is another tuning target"


@pytest.mark.answered
def test_a_confirmation_belongs_to_one_project(service, keys):
    scopes = ("studies:read", "studies:write", "configs:read", "workers:lease")
    mine, theirs = (keys(*scopes, project=name) for name in ("mine", "other"))
    asked = STUDY | {"cluster": "8xh100", "max_gpu_seconds": 600}
    estimate = ask(service, "studies_create", mine, **asked)
    assert not estimate.is_error, text(estimate)
    foreign = ask(service, "studies_create", theirs, **asked, confirmation=estimate.structured_content["confirmation"])
    assert foreign.is_error and "does not belong to this request" in text(foreign)


def test_without_a_key_that_replicas_share_no_confirmation_is_made(service, monkeypatch):
    def no_key(_settings):
        raise Conflict("no_secret_key", "none is set")

    monkeypatch.setattr(mount, "master_key", no_key)
    answer = ask(service, "studies_create", **STUDY | {"cluster": "8xh100"}, max_gpu_seconds=600)
    assert answer.is_error and "ask the operator to set SHARDTUNE_SECRET_KEY" in text(answer)


def test_an_agents_plan_has_the_figures_of_a_study(service):
    study = tune_on_gpus(service)
    asked = {"model": "llama-tiny", "tokens": 1e9, "gpus": ["h100"], "counts": [2, 8], "gpus_per_node": 2}
    for name in (study["study_id"], "last"):
        choices = ask(service, "plan", **asked, study=name).structured_content["choices"]
        speeds = {choice["gpus"]: choice["speed"] for choice in choices}
        assert (speeds[2]["basis"], speeds[8]["basis"]) == ("measured", "projected")
        assert speeds[2]["source"] == f"study {study['study_id']} on 2 GPUs, measured (confirmed)"
    rejected = ask(service, "plan", **asked, study="nobody")
    assert rejected.is_error and text(rejected).startswith("study (nobody) is not stored here")
