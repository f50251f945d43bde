"""A client that openapi-python-client makes of our document creates a study and reads what is served.

The generator's own dependencies contradict ours, so it lives in an environment of its own.
"""

import json
import os
import subprocess
import threading
import venv
from pathlib import Path

import pytest

from shardtune.service.app import create_app
from shardtune.service.settings import Settings
from tests.support.service.simulated_worker import SimulatedWorker

GENERATOR = "openapi-python-client==0.29.1"
SCRIPT = """
import sys, time
from made import Client
from made.models import Budget, StudyRequest, StudyRequestModelType1 as Preset, WorkloadRequest
from made.api.studies import create_study_v1_studies_post as create, read_study_v1_studies_study_id_get as read
from made.api.best import list_recommendations_v1_recommendations_get as answers, read_best_config_v1_best_get as best

client = Client(base_url=sys.argv[1], timeout=60)
workload = WorkloadRequest(sequence_length=64, global_batch=8)
study = create.sync(client=client, body=StudyRequest(Preset("llama-tiny"), workload, budget=Budget(max_trials=8)))
while read.sync(study.study_id, client=client).state.value == "running":
    time.sleep(0.2)
answer = answers.sync(client=client).recommendations[0]
print(study.study_id, best.sync(client=client, target_key=answer.target_key).best.description)
"""


@pytest.mark.skipif(os.environ.get("SHARDTUNE_TEST_LONG") != "1", reason="installs the generator")
def test_a_generated_client_creates_a_study_and_reads_the_best(http, tmp_path):
    (tmp_path / "openapi.json").write_text(json.dumps(create_app(Settings(), migrate=False).openapi()))
    venv.create(tmp_path / "tool", with_pip=True)
    tools = tmp_path / "tool" / "bin"
    _run(tmp_path, tools / "pip", "install", "--quiet", GENERATOR)
    _run(
        tmp_path,
        tools / "openapi-python-client",
        "generate",
        "--path",
        "openapi.json",
        "--meta",
        "none",
        "--output-path",
        "made",
    )
    worker = SimulatedWorker(http).register()
    ended = threading.Event()
    thread = threading.Thread(target=_work, args=(worker, ended))
    thread.start()
    try:
        run = _run(tmp_path, tools / "python", "-c", SCRIPT, str(http.base_url))
    finally:
        ended.set()
        thread.join()
    study_id, _, best = run.strip().partition(" ")
    assert http.get(f"/v1/studies/{study_id}/best").json()["best"]["description"] == best


def _work(worker: SimulatedWorker, ended: threading.Event) -> None:
    while not ended.wait(0.1):
        worker.work()


def _run(folder: Path, *command: str | Path) -> str:
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
