"""The example of a platform, against the real service on a socket, with a key."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import uvicorn

from shardtune.service.app import create_app
from shardtune.service.cli.processes import listening_socket
from shardtune.service.settings import Settings
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, quietly

ROOT = Path(__file__).parents[3]


def test_platform_gets_a_study_first_and_its_answer_then(sqlite_url, tmp_path):
    server = uvicorn.Server(uvicorn.Config(create_app(Settings(database_url=sqlite_url)), log_config=None))
    listener = listening_socket()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    study = tmp_path / "study.json"
    study.write_text(json.dumps(SPEC))

    def before_a_job(secret):
        environment = {**os.environ, "SHARDTUNE_SERVICE_URL": url, "SHARDTUNE_API_KEY": secret, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(ROOT / "examples" / "before_a_job.py"), str(study)]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    try:
        with httpx.Client(base_url=url, timeout=30) as http:
            secret = http.post("/v1/keys", json={"name": "platform", "scopes": ["admin"]}).json()["secret"]
            http.headers["authorization"] = f"Bearer {secret}"
            worker = SimulatedWorker(http, behave=quietly).register()
            assert "train with your defaults; study study-" in before_a_job(secret)
            worker.work()
            assert "train with FSDP2" in before_a_job(secret)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
