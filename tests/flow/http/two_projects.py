"""Two projects on one service that must not see each other, and a word that is in everything that one of them owns."""

import gzip
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi.testclient import TestClient

from shardtune.api_schemas.access.keys import Scope
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.trials.failures import FailureKind
from tests.support.service.local_client import local_client
from tests.support.service.page_reader import log_in
from tests.support.service.scenarios import bearer, make_key
from tests.support.service.simulated_worker import FINGERPRINT, MODEL_SUMMARY, SPEC, SimulatedWorker, diagnosis, failure

WORD = "kanarienvogel"
"""Allowed in every name, and in no text of ours."""
OWN = "mine"
TRACED: Any = {
    "task_kinds": ("model_summary", "trial", "trace"),
    "trace": lambda lease: diagnosis(notes=(lease.study_id,)),
    # Not squeezed, so that the words in it can be read.
    "raw_trace": lambda lease: gzip.compress(lease.study_id.encode(), 0),
}
SHORT = SPEC | {"budget": {"max_trials": 2, "max_pairs": 7}}
Ids = Mapping[str, str]
"""Ids of the project's objects by the names in routes."""


@dataclass(frozen=True)
class Owned:
    """What each project owns in a database, and a key of the own one."""

    key: dict[str, Any]
    """Key of every scope."""
    own: Ids
    theirs: Ids
    secrets: tuple[str, ...]
    """Words that no response may contain: the marker word, and ids of theirs that are long enough to mean nothing
    else."""


@dataclass(frozen=True)
class TwoProjects:
    """Clients of the own project, and the owner of each object."""

    api: TestClient
    """Client with a key of every scope."""
    pages: TestClient
    """Client of the same key, logged in."""
    token: dict[str, str]
    own: Ids
    theirs: Ids
    secrets: tuple[str, ...]


def two_projects(client: TestClient, owned: Owned) -> TwoProjects:
    """Clients of the own project on a service whose database `populate` filled."""
    api, pages = local_client(client.app, headers=bearer(owned.key)), local_client(client.app)
    return TwoProjects(api, pages, log_in(pages, owned.key["secret"]), owned.own, owned.theirs, owned.secrets)


def populate(client: TestClient) -> Owned:
    """Let both projects measure, with a worker of the other project's and one that serves both."""
    operator = local_client(client.app, headers=bearer(make_key(client, "admin")))
    mine, theirs = (make_key(operator, *Scope, project=project) for project in (OWN, WORD))
    api, other = (local_client(client.app, headers=bearer(key)) for key in (mine, theirs))
    shared = SimulatedWorker(_worker(operator, None), name="shared", **TRACED).register()
    own = _tuned(api, shared, "first", "llama-tiny") | {"key_id": mine["key"]["key_id"], "project_id": OWN}
    operator.post("/v1/webhooks", json={"url": f"https://operator-{WORD}.example/"}).raise_for_status()
    fingerprint = FINGERPRINT.model_copy(update={"torch": f"2.{WORD}"})
    worker = SimulatedWorker(
        _worker(operator, WORD), name=f"{WORD}-1", fingerprint=fingerprint, details={"host": WORD}, **TRACED
    ).register()
    tuned = _tuned(other, worker, WORD, {"name": WORD, "config": preset("llama-tiny").config})
    pin = other.post("/v1/best:pin", params={"target_key": tuned["target_key"]}, json={"note": WORD})
    pin.raise_for_status()
    named = other.post("/v1/keys", json={"name": WORD, "scopes": ["studies:read"], "project_id": WORD}).json()["key"]
    tuned |= {"key_id": named["key_id"], "project_id": WORD}
    runs = _open_on(shared, other)
    # What is served to us is stale now, and the machine that is nearest to it is the other project's.
    SimulatedWorker(
        shared.client, name="shared", fingerprint=FINGERPRINT.model_copy(update={"torch": "2.1", "deepspeed": "0.1"})
    ).register()
    secrets = {WORD, *runs, *(value for value in tuned.values() if len(value) > 12)} - set(own.values())
    sessions = {shared.session, worker.session}
    return Owned(mine, own, tuned, tuple(sorted(secrets | sessions)))


def _worker(operator: TestClient, project: str | None) -> TestClient:
    key = make_key(operator, "workers:lease", project=project)
    return local_client(operator.app, headers=bearer(key))


def _tuned(client: TestClient, worker: SimulatedWorker, name: str, model: Any) -> dict[str, str]:
    """A finished study, what came of it, a webhook, and a schedule that has asked for a retune; their ids."""

    def create(path: str, **body: Any) -> Any:
        answer = client.post(path, **body)
        assert answer.is_success, answer.text
        return answer.json()

    hook = create("/v1/webhooks", json={"url": f"https://{name}.example/hook"})
    study = create("/v1/studies", json=SHORT | {"model": model}, params={"study_id": name})["study_id"]
    worker.work()
    create(f"/v1/studies/{study}/trials/0:diagnose")
    worker.work()
    schedule = create("/v1/schedules", json={"name": name, "trigger": "manual"})["schedule_id"]
    create(f"/v1/schedules/{schedule}:run")
    run = client.get(f"/v1/studies/{study}/trials").json()["trials"][0]["runs"][0]["run_id"]
    workers = {row["name"]: row["worker_id"] for row in client.get("/v1/workers").json()["workers"]}
    fingerprints = client.get("/v1/fingerprints", params={"worker": worker.name}).json()["fingerprints"]
    return {
        "webhook_id": hook["webhook_id"],
        "study_id": study,
        "schedule_id": schedule,
        "retune_id": client.get("/v1/retunes").json()["retunes"][0]["retune_id"],
        "target_key": client.get("/v1/recommendations").json()["recommendations"][0]["target_key"],
        "run_id": run,
        "worker_id": workers[worker.name],
        "fingerprint_id": fingerprints[0]["fingerprint_id"],
        "number": "0",
        "rank": "0",
        "name": "launch.sh",
        "action": "pin",
    }


def _open_on(shared: SimulatedWorker, other: TestClient) -> set[str]:
    """Another study of theirs, on the worker that serves both: one run failed, one under way. The runs' ids."""
    model = {"name": f"{WORD}-2", "config": preset("llama-tiny").config}
    study = other.post("/v1/studies", json=SHORT | {"model": model, "seed": 7}).json()["study_id"]
    first = shared.lease()
    assert first is not None and first.study_id == study
    shared.report(first, MODEL_SUMMARY).raise_for_status()
    failed = shared.lease()
    assert failed is not None
    shared.report(failed, failure(FailureKind.ILLEGAL, WORD), log_tail=WORD).raise_for_status()
    running = shared.lease()
    assert running is not None
    shared.heartbeat(running, progress={"phase": "measuring", "step": 4242})
    text = other.get(f"/v1/studies/{study}/trials").text
    return {study, first.run_id, *re.findall(r"run-[0-9a-f]{16}", text)}
