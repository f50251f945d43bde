"""The service beside a laboratory: on this machine, asked by the hosts over their links, with keys as anywhere else."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx

from tests.lab.laboratory import Laboratory

PORT = 8470
LEASE_S = 10


class LabService:
    """`url` is what workers are told; `key_file` holds their key, where every host sees it."""

    def __init__(self, laboratory: Laboratory, folder: Path, **settings: str) -> None:
        """`settings` as in service.settings, in capitals without the prefix."""
        self.url = f"http://{laboratory.gateway}:{PORT}"
        self.key_file = laboratory.claim.shared / "worker.key"
        self._address, self._folder = laboratory.gateway, folder
        values = {"LEASE_S": str(LEASE_S), "HEARTBEAT_S": "1", "REQUIRE_KEYS": "true", **settings}
        self._environment = {f"SHARDTUNE_{name}": value for name, value in values.items()}
        self._environment["SHARDTUNE_DATABASE_URL"] = f"sqlite:///{folder}/shardtune.sqlite3"
        self._process: subprocess.Popen[bytes] | None = None
        self.key_file.touch(mode=0o600)
        self.key_file.write_text(self._key("workers:lease"))
        bearer = {"Authorization": f"Bearer {self._key('admin')}"}
        self.http = httpx.Client(base_url=self.url, headers=bearer, timeout=10, trust_env=False)

    def _key(self, scope: str) -> str:
        words = ["keys", "create", "--name", scope.replace(":", "-"), "--scope", scope, "--all-projects", "--json"]
        printed = subprocess.run(
            [sys.executable, "-m", "shardtune", *words],
            env=os.environ | self._environment, cwd=self._folder, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        return str(json.loads(printed)["secret"])

    def start(self) -> None:
        """Start it, and wait until it answers."""
        words = ["serve", "--host", self._address, "--port", str(PORT)]
        with (self._folder / "service.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "shardtune", *words],
                env=os.environ | self._environment, cwd=self._folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.await_true(self._is_ready, 120, "the service is ready")

    def _is_ready(self) -> bool:
        try:
            return self.http.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def get(self, path: str) -> Any:
        try:
            answer = self.http.get(path)
        except httpx.TransportError:
            # On a busy machine a kept connection may end in the moment that it is used again.
            answer = self.http.get(path)
        answer.raise_for_status()
        return answer.json()

    def create(self, spec: dict[str, Any]) -> str:
        answer = self.http.post("/v1/studies", json=spec)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["study_id"])

    def runs(self, study_id: str) -> list[dict[str, Any]]:
        """Every run of every trial, with its attempts."""
        trials = self.get(f"/v1/studies/{study_id}/trials")
        rows = (
            trials if isinstance(trials, list) else next(value for value in trials.values() if isinstance(value, list))
        )
        return [run for trial in rows for run in trial["runs"]]

    @staticmethod
    def await_true(condition: Callable[[], Any], seconds: float, description: str) -> Any:
        """Poll until the condition gives something true.

        Raises:
            TimeoutError: it did not.
        """
        ends_s = time.monotonic() + seconds
        while not (outcome := condition()):
            if time.monotonic() > ends_s:
                raise TimeoutError(f"not within {seconds:g} s: {description}")
            time.sleep(0.1)
        return outcome

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.http.close()
