"""`shardtune studies` and `shardtune workers` against the real service on a socket."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker, quietly

ROOT = Path(__file__).parents[3]
FILE = SPEC | {"cluster": CLUSTER.model_dump(mode="json")}


@pytest.fixture
def study_file(tmp_path):
    path = tmp_path / "study.json"
    path.write_text(json.dumps(FILE))
    return str(path)


def test_a_study_from_its_file_to_its_clone(http, study_file, run):
    worker = SimulatedWorker(http, behave=quietly).register()
    assert run("studies", "create", study_file, "--id", "nightly")[1]["study_id"] == "nightly"
    assert run("studies", "pause", "nightly")[1]["state"] == "paused"
    assert [s["study_id"] for s in run("studies", "list", "--state", "paused")[1]["studies"]] == ["nightly"]
    assert run("studies", "resume", "last")[1]["state"] == "running"
    worker.work()
    assert run("studies", "wait", "nightly")[1]["verdict"] == "confirmed"
    assert run("studies", "extend", "nightly", "--add-trials", "8")[1]["spec"]["budget"]["max_trials"] == 16
    worker.work()
    assert run("studies", "show", "nightly")[1]["state"] == "complete"
    assert [side["trial_number"] for side in run("compare", "nightly:0", "nightly:3")[1]["configs"]] == [0, 3]
    table = run("compare", "nightly", "nightly:0", as_json=False)[1]
    assert (
        "speed-up over its study's baseline (paired runs)" in table
        and "GPU-seconds" in table
        and "strategy" not in table
    )
    assert run("compare", "last:3", "nightly:0")[1]["configs"] == run("compare", "nightly:3", "nightly:0")[1]["configs"]
    assert "nobody" in run("compare", "nightly", "nobody")[1] and "two to 4" in run("compare", "nightly")[1]
    assert run("studies", "pareto", "nightly")[1]["trials"] == run("studies", "importance")[1]["trials"] == 16
    changes = Path(study_file).with_name("changes.json")
    changes.write_text('{"seed": 5}')
    again = run("studies", "clone", "nightly", "--changes", str(changes))[1]
    assert again["spec"]["seed"] == 5 and again["study_id"] != "nightly"
    assert run("studies", "cancel", again["study_id"])[1]["state"] == "cancelled"


def test_the_same_in_words(http, study_file, run):
    worker = SimulatedWorker(http).register()
    assert run("studies", "list", as_json=False) == (0, "no studies\n")
    created = run("studies", "create", study_file, as_json=False)[1]
    assert "running (model_summary)" in created and "llama-tiny" in created
    worker.work()
    answer = run("studies", "wait", as_json=False)[1]
    assert "verdict     confirmed: " in answer and "measured    7 paired runs" in answer
    assert "tokens/s/GPU" in run("studies", "pareto", as_json=False)[1]
    assert "are needed" in run("studies", "importance", as_json=False)[1]
    assert "live" in run("workers", "list", as_json=False)[1]
    assert run("workers", "drain", "sim")[1]["is_draining"] and not run("workers", "resume", "sim")[1]["is_draining"]


def test_what_is_rejected_says_what_to_do(http, study_file, run):
    assert run("studies", "create", study_file, as_json=False)[0] == 2, "nobody has the cluster"
    SimulatedWorker(http).register()
    run("studies", "create", study_file, "--id", "nightly")
    for arguments, words in [
        (("show", "missing"), "the newest is nightly"),
        (("extend", "nightly"), "give add_trials"),
        (("extend", "nightly", "--add-gpu-seconds", "5"), "has no max_gpu_seconds"),
        (("clone", "nightly", "--changes", "missing.json"), "missing.json"),
        (("create", study_file, "--id", "nightly"), "is taken"),
        (("list", "--key-file", "missing"), "cannot be read"),
    ]:
        code, text = run("studies", *arguments, as_json=False)
        assert code == 2 and words in text and "Traceback" not in text, text
    code, text = run("studies", "wait", "nightly", "--timeout-s", "0", as_json=False)
    assert code == 4 and "had not ended after 0 s" in text
    assert run("workers", "drain", "nobody", as_json=False)[0] == 2


@pytest.mark.parametrize(("command", "state"), [("create", "cancelled"), ("wait", "running")])
def test_ctrl_c_cancels_the_study_it_owns_and_no_other(http, study_file, command, state):
    SimulatedWorker(http).register()
    if command == "wait":
        http.post("/v1/studies", json=FILE).raise_for_status()
    requested = [study_file, "--wait"] if command == "create" else ["last"]
    arguments = [sys.executable, "-m", "shardtune", "studies", command, *requested]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert any("counting" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        stated = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in stated
    assert http.get("/v1/studies").json()["studies"][0]["state"] == state


def test_trials_in_an_optuna_storage(http, study_file, run, tmp_path):
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    worker = SimulatedWorker(http, behave=quietly).register()
    run("studies", "create", study_file, "--id", "nightly")
    worker.work()
    written = run("studies", "to-optuna", "nightly", "--storage", storage)[1]
    assert written == {"name": "nightly", "added": 8, "kept": 0, "waiting": 0}
    again = run("studies", "to-optuna", "--storage", storage, as_json=False)
    assert again == (0, "study 'nightly': 0 trials added, 8 were there\n")
    best = optuna.load_study(study_name="nightly", storage=storage)
    fastest = max(
        trial["tokens_per_s_per_gpu"] or 0 for trial in http.get("/v1/studies/nightly/trials").json()["trials"]
    )
    assert best.best_value == fastest and best.user_attrs["verdict"] == "confirmed"
    code, text = run("studies", "to-optuna", "--storage", "sqlite:////nowhere/trials.db", as_json=False)
    assert code == 2 and text.startswith("--storage (sqlite:////nowhere/trials.db) cannot be written: ")
