"""The real service and the real worker as processes of their own, for tests that kill them."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from shardtune.service.cli.parent_death import dies_with_parent
from tests.support.service.replica import Replica

TINY: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def study(**changes: Any) -> dict[str, Any]:
    """A study of a model so small that a trial takes about two seconds."""
    base: dict[str, Any] = {
        "model": TINY,
        "workload": {"sequence_length": 32, "global_batch": 8, "precision": "fp32"},
        # Tests share their machine with others: nothing is repeated for that.
        "budget": {"max_trials": 3, "max_pairs": 7, "repeat_disturbed": 0},
        "space": {"backends": ["ddp", "fsdp2"]},
    }
    return base | changes


def free_port() -> int:
    """A port of 127.0.0.1 that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(condition: Callable[[], Any], seconds: float, description: str) -> Any:
    """Poll until the condition gives something true; fails after so many seconds.

    Looking takes a tenth of the time, on a busy machine more: what is waited for needs the processor, and so does the service that
    is asked, but what lasts for two seconds must be seen.
    """
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        value = condition()
        if value:
            return value
        time.sleep(min(1.0, max(0.05, 9 * (time.monotonic() - began))))
    raise AssertionError(f"not within {seconds:g} s: {description}")


class Crew:
    """The processes of a worker whose ranks train."""

    def __init__(self, agent: psutil.Process) -> None:
        (helper,) = agent.children()
        # With a PID namespace there is a process in between, which waits for the host.
        wrapped = any("launchers/parent_death" in word for word in helper.cmdline())
        self.agent, self.host = agent, helper.children()[0] if wrapped else helper
        self.ranks = self.host.children()
        self.rank = self.ranks[1]
        self.below = agent.children(recursive=True)


class Stack:
    """One service and one worker at a time, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._service: Replica | None = None
        self.http = httpx.Client(timeout=30, trust_env=False)

    def start_service(self, **settings: object) -> None:
        """`settings` as in service.settings."""
        url = f"sqlite:///{self._folder}/shardtune.sqlite3"
        self._service = Replica(url, self._folder / "service.log", **({"lease_s": 10, "heartbeat_s": 1} | settings))
        self.http.base_url = httpx.URL(self._service.url)
        self._service.start()
        self._service.wait_until_ready()

    def start_worker(self, ranks: int = 2, options: Sequence[str] = ()) -> psutil.Process:
        before = set(self.workers())
        command = [sys.executable, "-m", "shardtune.workers", "--service", str(self.http.base_url), "--name", "w"]
        command += [
            "--work-dir",
            str(self._folder / "worker"),
            "--ranks",
            str(ranks),
            "--memory-gib",
            "2",
            "--no-build-operators",
        ]
        process = self._start([*command, *options], "worker.log")
        until(lambda: set(self.workers()) - before or process.poll() is not None, 300, "worker registered")
        assert process.poll() is None, (self._folder / "worker.log").read_text()
        return psutil.Process(process.pid)

    def workers(self) -> list[str]:
        """Start of each worker's present process: another moment appears with each start."""
        return [worker["registered_at"] for worker in self._list("/v1/workers")]

    def create(self, spec: dict[str, Any]) -> str:
        answer = self.http.post("/v1/studies", json=spec)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["study_id"])

    def study(self, study_id: str) -> dict[str, Any]:
        record: dict[str, Any] = self.http.get(f"/v1/studies/{study_id}").json()
        return record

    def trials(self, study_id: str) -> list[dict[str, Any]]:
        return self._list(f"/v1/studies/{study_id}/trials")

    def close(self) -> None:
        self.http.close()
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        if self._service is not None:
            self._service.close()

    def _list(self, path: str) -> list[dict[str, Any]]:
        body = self.http.get(path).json()
        rows: list[dict[str, Any]] = body if isinstance(body, list) else next(iter(body.values()))
        return rows

    def _start(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        with (self._folder / log).open("ab") as output:
            process = subprocess.Popen(dies_with_parent(command), stdout=output, stderr=output)
        self._processes.append(process)
        return process
