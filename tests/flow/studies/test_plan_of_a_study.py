"""A plan takes the times of checkpoints from the resume check of a stored study."""

import json

import pytest

from shardtune.api_schemas.trials.leases import TASK_KINDS
from shardtune.api_schemas.trials.plans import PlanRequest
from shardtune.service.cli.commands.app import app as cli
from shardtune.service.cli.errors import InputError
from shardtune.service.client import ServiceClient
from tests.support.service.scenarios import THREE_BACKENDS
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, quietly

RUN = ("plan", "llama-tiny", "--tokens", "1e9", "--gpus", "h100", "--counts", "8", "--failure-rate", "1e-3", "--json")


def plan(capsys, *arguments):
    cli([*RUN, *arguments], standalone_mode=False)
    return json.loads(capsys.readouterr().out)


def test_the_goodput_is_that_of_the_times_that_the_resume_check_measured(http, capsys):
    assert SPEC["model"] == "llama-tiny"
    with pytest.raises(InputError, match="no study is stored here"):
        plan(capsys, "--study", "last")
    worker = SimulatedWorker(http, behave=quietly, task_kinds=TASK_KINDS).register()
    created = http.post("/v1/studies", json=SPEC | {"space": {"backends": ["ddp", "zero", "fsdp2"]}})
    study_id = created.json()["study_id"]
    worker.work()
    check = http.get(f"/v1/studies/{study_id}").json()["result"]["resume_check"]
    assert (check["save_s"], check["load_s"]) == (0.5, 0.25)
    measured = plan(capsys, "--study", "last", "--restart-seconds", "100")
    stated = plan(capsys, "--checkpoint-seconds", "0.5", "--restart-seconds", "100.25")
    assert measured["rows"][0]["goodput"] == stated["rows"][0]["goodput"]
    assert measured["rows"][0]["checkpoint_interval_s"] == stated["rows"][0]["checkpoint_interval_s"]
    assert measured["notes"][-1].startswith(f"study {study_id}: its resume check saved a checkpoint in 0.5 s")
    assert plan(capsys)["rows"][0]["goodput"] < measured["rows"][0]["goodput"]
    own = plan(capsys, "--study", study_id, "--checkpoint-seconds", "60")
    assert "60 s a checkpoint, 600.25 s a restart" in " ".join(own["notes"])


def test_a_client_leaves_the_times_out_that_its_caller_leaves_out(http, capsys):
    worker = SimulatedWorker(http, behave=quietly, task_kinds=TASK_KINDS).register()
    study_id = http.post("/v1/studies", json=SPEC | THREE_BACKENDS).json()["study_id"]
    worker.work()
    asked = {"model": "llama-tiny", "tokens": 1e9, "gpus": ["h100"], "counts": [8], "study": study_id}
    with ServiceClient(str(http.base_url)) as client:
        for goodput, words in (
            ({}, "0.5 s a checkpoint, 600.25 s a restart"),
            ({"checkpoint_s": 60.0}, "60 s a checkpoint, 600.25 s a restart"),
        ):
            made = client.plan(
                PlanRequest.model_validate(asked | {"goodput": {"failures_per_gpu_hour": 1e-3} | goodput})
            )
            assert any(words in note for note in made.notes)
    made = plan(capsys, "--study", study_id)
    assert any("0.5 s a checkpoint, 600.25 s a restart" in note for note in made["notes"])
