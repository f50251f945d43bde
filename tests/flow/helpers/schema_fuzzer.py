"""Schemathesis against a running service that has a finished study and an open one."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from shardtune.db.session import upgrade
from tests.support.long_run import IS_LONG
from tests.support.service.replica import Replica
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker

WORD = "kanarienvogel"
"""Name of all that the other project has; no text of ours has it."""
STUDY = SPEC | {"cluster": CLUSTER.model_dump(), "budget": {"max_trials": 3}}
_SETTINGS = {"lease_s": 5, "sweep_s": 1, "worker_live_s": 10_000, "secret_key": "fuzzed" * 8, "poll_s": 0.1}
_ROOT = Path(__file__).parents[3]


@contextmanager
def fuzzed_service(url: str, log: Path) -> Iterator[Replica]:
    """A service without keys on that database, and the studies `finished`, `open` and `spare` on it."""
    upgrade(url)
    with Replica(url, log, **_SETTINGS) as running:
        running.wait_until_ready()
        with httpx.Client(base_url=running.url, timeout=30, trust_env=False) as client:
            worker = SimulatedWorker(client).register()
            client.post("/v1/studies", json=STUDY, params={"study_id": "finished"}).raise_for_status()
            worker.work()
            for name in ("open", "spare"):
                client.post("/v1/studies", json=STUDY, params={"study_id": name}).raise_for_status()
        yield running


def run_schemathesis(
    replica: Replica, document: dict[str, Any], folder: Path, hooks: str, options: Sequence[str], **environment: str
) -> str:
    """Send what the document allows and what it does not, and return what schemathesis printed.

    Raises:
        AssertionError: a check failed, or the service's log, `service.log` in the folder, has a traceback.
    """
    (folder / "openapi.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", replica.url]
    command += ["--continue-on-failure", "--no-color", "--request-timeout", "60", "--seed", "1"]
    command += [*([] if IS_LONG else ["--no-shrink"]), *options]
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    environment |= {"PYTHONPATH": path, "SCHEMATHESIS_HOOKS": hooks}
    ran = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=3000, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in (folder / "service.log").read_text()
    return ran.stdout


def cases_in(printed: str) -> int:
    """Number of cases that schemathesis made up."""
    return int(re.search(r"(\d+) generated", printed)[1])
