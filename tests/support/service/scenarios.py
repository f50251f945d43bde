"""Starting points of flow tests: a tuned study, its recommendation, keys, and many threads at once."""

import json
import threading

from shardtune.api_schemas.machines.fingerprints import Effect, FieldChange
from tests.support.service.simulated_worker import (
    CLUSTER,
    FINGERPRINT,
    SPEC,
    SimulatedWorker,
    measurement,
    on_quiet_machine,
    speed_of,
)

WORKLOAD = SPEC["workload"]

ASK = {"model": "llama-tiny", "cluster": CLUSTER.model_dump_json(), "workload": json.dumps(WORKLOAD)}

THREE_BACKENDS = {"space": {"backends": ["ddp", "zero", "fsdp2"], "knobs": {"malloc": "default"}}}
"""The environment changes no speed of the simulated worker, and would only thin out the configurations tried."""


def tune(client, speed=1.0, fingerprint=FINGERPRINT, worker="sim", is_quiet=True, **changes):
    """The id of a finished study, measured on a machine of this speed.

    On a quiet machine three to six pairs are enough. Tests marked `answered` begin with a study of seven, whose runs do
    not say how far they lie apart.
    """

    def behave(_lease, task):
        run = measurement(speed * speed_of(task.config))
        return on_quiet_machine(run) if is_quiet else run

    machine = SimulatedWorker(client, name=worker, behave=behave, fingerprint=fingerprint).register()
    study = client.post("/v1/studies", json=SPEC | changes).json()
    machine.work()
    return study["study_id"]


def answered_study(client):
    """The id of the study that the database of a test marked `answered` begins with."""
    (study,) = client.get("/v1/studies").json()["studies"]
    return study["study_id"]


def best(client, **params):
    """Recommendation for `ASK`, or as `params` say."""
    answer = client.get("/v1/best", params=params or ASK)
    assert answer.status_code == 200, answer.text
    return answer.json()


def decide(client, key, action, **body):
    """The answer to a person's decision about a case."""
    return client.post(f"/v1/best:{action}", params={"target_key": key}, json=body)


def create(client, **changes):
    """A new study's id."""
    answer = client.post("/v1/studies", json=SPEC | changes)
    assert answer.status_code == 201, answer.text
    return answer.json()["study_id"]


def run_study(client, behave, cluster=CLUSTER, **changes):
    """A study and its trials, after a worker that behaves so found no more work."""
    worker = SimulatedWorker(client, behave=behave, cluster=cluster).register()
    answer = client.post("/v1/studies", json=SPEC | changes)
    assert answer.status_code == 201, answer.text
    study_id = answer.json()["study_id"]
    worker.work()
    study = client.get(f"/v1/studies/{study_id}").json()
    return study, client.get(f"/v1/studies/{study_id}/trials").json()["trials"]


def make_key(client, *scopes, project=None, **headers):
    """A new key as the service answers it, with its secret."""
    body = {"name": "+".join(scopes), "scopes": scopes, "project_id": project}
    answer = client.post("/v1/keys", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()


def bearer(created):
    """The headers of a request with that key."""
    return {"authorization": f"Bearer {created['secret']}"}


def in_threads(work, arguments):
    """Call it with each argument at once; an error in any thread is the test's."""
    errors = []

    def guarded(argument):
        try:
            work(argument)
        except Exception as error:  # noqa: BLE001 (a thread's error is the test's)
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def change(field, now="new"):
    """Change of hardware or software, as retunes report it."""
    return FieldChange(field=field, was="old", now=now, effect=Effect.STALE)


def fields_of(retune):
    """Names of what a retune says has changed."""
    return [change["field"] for change in retune["changes"]]
