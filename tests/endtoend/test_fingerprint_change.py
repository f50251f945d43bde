"""A driver that changes under a real worker with real ranks: three service processes on Postgres, from stale to renewed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardtune.service.cli.parent_death import dies_with_parent
from tests.support.processes.stack import study, until
from tests.support.service.replica_set import Replicas, replicas_of
from tests.support.service.scenarios import fields_of

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.postgres,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.environ.get("SHARDTUNE_TEST_LONG") != "1", reason="minutes of real ranks: make test-long"),
]

PLAN = {
    "parity_steps": 2,
    "max_warmup_steps": 2,
    "window_steps": 4,
    "min_windows": 3,
    "max_windows": 3,
    "min_measure_s": 0,
}
DEBOUNCE_S = 20


@pytest.fixture
def replicas(database_url: str, tmp_path: Path) -> Iterator[Replicas]:
    settings = {"fingerprint_check_s": 1, "fingerprint_debounce_s": DEBOUNCE_S, "retune_every_s": 1}
    with replicas_of(3, database_url, tmp_path, measure=json.dumps(PLAN), **settings) as opened:
        yield opened


class Worker:
    """`python -m shardtune.workers` with a declared driver."""

    def __init__(self, folder: Path, service: str, driver: str) -> None:
        command = [
            sys.executable,
            "-m",
            "shardtune.workers",
            "--service",
            service,
            "--name",
            "w",
            "--work-dir",
            f"{folder}/worker",
        ]
        command += ["--ranks", "2", "--memory-gib", "2", "--no-build-operators"]
        command += ["--fingerprint-override", f"driver={driver}"]
        with (folder / "worker.log").open("ab") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(dies_with_parent(command), stdout=log, stderr=log, env=environment)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)


def first(items: list[Any]) -> Any:
    return items[0] if items else None


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_new_driver_makes_the_answer_stale_and_one_retune_renews_it(replicas: Replicas, tmp_path: Path) -> None:
    service = [str(client.base_url) for client in replicas.clients]
    worker = Worker(tmp_path, service[0], "550.54.14")
    until(lambda: replicas.get("/v1/workers")["workers"], 120, "worker registered")
    created = replicas.clients[1].post("/v1/studies", json=study())
    assert created.status_code == 201, created.text
    difference = until(
        lambda: first(replicas.get("/v1/recommendations")["recommendations"]), 300, "the study is answered"
    )
    key = difference["target_key"]
    worker.stop()
    worker = Worker(tmp_path, service[2], "560.35.03")
    try:
        stale = until(lambda: (b := _best(replicas, key))["freshness"] == "stale" and b, 60, "stale")
        assert stale["changed_fields"] == ["driver"]
        retune = until(lambda: first(replicas.get("/v1/retunes")["retunes"]), DEBOUNCE_S + 30, "a retune is asked for")
        path = f"/v1/retunes/{retune['retune_id']}"
        ended = until(lambda: (r := replicas.get(path))["state"] == "ended" and r, 300, "the retune ends")
    finally:
        worker.stop()
    assert (ended["cause"], fields_of(ended)) == ("fingerprint", ["driver"])
    assert ended["challenge_study_id"] is not None and ended["outcome"] in ("kept", "replaced", "inconclusive"), ended
    assert len(replicas.get("/v1/retunes")["retunes"]) == 1
    if ended["outcome"] != "inconclusive":
        serving = replicas.get("/v1/recommendations", state="recommended")["recommendations"]
        assert "560.35.03" in {recommendation["answer"]["fingerprint"]["driver"] for recommendation in serving}


def _best(replicas: Replicas, key: str) -> Any:
    return replicas.get("/v1/best", target_key=key)
