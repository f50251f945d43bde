"""The tutorial over HTTP: its requests are sent, in its order, to a service with a worker, and each of them succeeds."""

import json
import os
import subprocess
import threading

import httpx

from docs.generate.snippets.collect import Snippet, snippets
from tests.flow.helpers.uvicorn_thread import served
from tests.support.service.simulated_worker import SimulatedWorker, quietly

PAGE = "docs/tutorials/first-study-over-http.md"
SNIPPETS = [snippet for snippet in snippets() if snippet.path == PAGE]
REQUESTS = [snippet for snippet in SNIPPETS if snippet.language == "sh"]


def send(snippet: Snippet, folder, address: str) -> str:
    """Run a code block in a shell; the address of the service is the test's."""
    script = snippet.text.replace("http://127.0.0.1:8470", address)
    environment = {"PATH": os.environ["PATH"], "SHARDTUNE_SERVICE_URL": address, "no_proxy": "127.0.0.1"}
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, f"{snippet.place}: {ran.stderr}{ran.stdout}"
    return ran.stdout


def test_every_request_of_the_tutorial_succeeds_in_its_order(sqlite_url, tmp_path):
    (study_file,) = [snippet.text for snippet in SNIPPETS if snippet.language == "json"]
    (tmp_path / "study.json").write_text(study_file)
    printed = ""
    # A busy machine may take long to choose a trial, and a worker that gave up would leave the study running for ever.
    with (
        served(sqlite_url, fingerprint_check_s=3600) as service,
        httpx.Client(base_url=service.client.base_url, timeout=300, trust_env=False) as client,
    ):
        worker, has_ended = SimulatedWorker(client, behave=quietly).register(), threading.Event()

        def work() -> None:
            while not has_ended.is_set():
                worker.work(400)
                has_ended.wait(0.1)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for snippet in REQUESTS:
                printed += send(snippet, tmp_path, f"http://127.0.0.1:{service.port}")
        finally:
            has_ended.set()
            thread.join()
    assert '"verdict":"confirmed"' in printed and "study.created" in printed
    assert (tmp_path / "launch.sh").read_text().startswith("#!")
    assert "config.json" in json.loads((tmp_path / "export.json").read_text())["files"]
