"""The API's own document against a running service, by schemathesis: no 5xx, nothing undocumented, no answer of another shape.

All its checks but `positive_data_acceptance`: rules beyond the schema answer 422, 409 and 412. More of it, also what
its coverage of the schema makes up (seven cases of eight), and on Postgres, with SHARDTUNE_TEST_LONG=1.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from shardtune.api_schemas.training.models import preset
from shardtune.db.session import upgrade
from tests.flow.http.two_projects import WORD
from tests.support.service.replica import Replica
from tests.support.service.scenarios import bearer, make_key
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker

LONG = os.environ.get("SHARDTUNE_TEST_LONG") == "1"
PHASES = [] if LONG else ["--phases", "examples,fuzzing,stateful"]
STUDY = SPEC | {"cluster": CLUSTER.model_dump(), "budget": {"max_trials": 3}}
SETTINGS = {"lease_s": 5, "sweep_s": 1, "worker_live_s": 10_000, "secret_key": "fuzzed" * 8, "poll_s": 0.1}
ROOT = Path(__file__).parents[3]


@pytest.fixture
def replica(request, tmp_path):
    url = request.getfixturevalue("empty_postgres_url" if LONG else "sqlite_url")
    upgrade(url)
    with Replica(url, tmp_path / "service.log", **SETTINGS) as running:
        running.wait_until_ready()
        with httpx.Client(base_url=running.url, timeout=30, trust_env=False) as client:
            worker = SimulatedWorker(client).register()
            client.post("/v1/studies", json=STUDY, params={"study_id": "finished"}).raise_for_status()
            worker.work()
            client.post("/v1/studies", json=STUDY, params={"study_id": "open"}).raise_for_status()
        yield running


def document(replica, is_guarded):
    """The service's own; where it has no keys, what the document says of them does not apply."""
    described = httpx.get(f"{replica.url}/openapi.json", timeout=30, trust_env=False).json()
    if not is_guarded:
        del described["components"]["securitySchemes"]
        for operation in (operation for path in described["paths"].values() for operation in path.values()):
            operation.pop("security", None)
    return described


def fuzz(replica, folder, *options, secret="", **environment):
    """Returns how many cases there were."""
    (folder / "openapi.json").write_text(json.dumps(document(replica, is_guarded=bool(secret))))
    command = [sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", replica.url]
    command += [
        "--checks",
        "all",
        "--exclude-checks",
        "positive_data_acceptance",
        "--continue-on-failure",
        "--no-color",
    ]
    command += ["--request-timeout", "60", "--seed", "1", *(["--no-shrink"] if not LONG else []), *options]
    command += ["--header", f"Authorization: Bearer {secret}"] if secret else []
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment |= {"PYTHONPATH": path, "SCHEMATHESIS_HOOKS": "tests.flow.http.fuzz_hooks"}
    ran = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=3000, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Authentication failed" not in ran.stdout, ran.stdout
    assert "Traceback" not in (folder / "service.log").read_text()
    return int(re.search(r"(\d+) generated", ran.stdout)[1])


@pytest.mark.timeout(3600 if LONG else 240)
def test_every_answer_is_one_that_the_document_describes(replica, tmp_path):
    """Check that no response holds a word of the other project."""
    with httpx.Client(base_url=replica.url, timeout=30, trust_env=False) as client:
        client.headers = bearer(make_key(client, "admin"))
        own, other, theirs = (make_key(client, "admin", project=name) for name in ("default", "default", WORD))
        client.headers = bearer(theirs)
        worker = SimulatedWorker(client, name=f"{WORD}-1").register()
        model = {"name": WORD, "config": preset("llama-tiny").config}
        client.post("/v1/studies", json=STUDY | {"model": model}, params={"study_id": WORD}).raise_for_status()
        worker.work()
    cases = fuzz(
        replica,
        tmp_path,
        *PHASES,
        *("--max-examples", "30" if LONG else "6"),
        # Of the operator's keys only; the fuzzer without keys has them.
        *("--exclude-path", "/metrics", "--exclude-operation-id", "put_project_v1_projects__project_id__put"),
        secret=own["secret"],
        FUZZ_OWN_KEY=own["key"]["key_id"],
        FUZZ_OTHER_KEY=other["key"]["key_id"],
        FUZZ_CANARY=WORD,
    )
    assert cases >= (5000 if LONG else 250)


@pytest.mark.timeout(3600 if LONG else 240)
def test_the_same_holds_without_keys(replica, tmp_path):
    """Making the first key would shut the door on the fuzzer, so that is left out."""
    fuzz(
        replica,
        tmp_path,
        *PHASES,
        *("--max-examples", "30" if LONG else "1"),
        *("--exclude-operation-id", "create_key_v1_keys_post"),
    )
