"""Studies on a target that compare the first two choices of a projection, with a simulated worker over its nodes."""

import json

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.failures import FailureKind
from tests.support.service.scenarios import THREE_BACKENDS, WORKLOAD, tune
from tests.support.service.simulated_worker import CLUSTER, SimulatedWorker, failure, measurement

TARGET = {"target": "4x2", "workload": WORKLOAD | {"global_batch": 32}}
THERE = CLUSTER.model_copy(update={"nodes": 4})


def projected_study(client):
    """Study with a projection to four nodes."""
    study = read(client, tune(client, **(TARGET | THREE_BACKENDS)))
    assert study["result"]["projection"]["verdict"] == "projected", study["result"]["notes"]
    return study


def read(client, study_id):
    return client.get(f"/v1/studies/{study_id}").json()


def confirming_request(client, study):
    """Study of the file `confirm.json`."""
    files = client.get(f"/v1/studies/{study['study_id']}/export", params={"which": "target"}).json()["files"]
    assert f"study {study['study_id']}" in files["confirm.sbatch"]
    return json.loads(files["confirm.json"])


def choices(study):
    projection = study["result"]["projection"]
    return projection["best"], projection["runners_up"][0]


def run_there(client, request, speeds):
    """Finished study of a worker with the target's nodes. `speeds` of the first and the second choice, or how it fails;
    None: no memory."""
    second = TrialConfig.model_validate(request["baseline"])

    def behave(_lease, task):
        speed = speeds[1] if task.config == second else speeds[0]
        if isinstance(speed, FailureKind):
            return failure(speed)
        return failure(FailureKind.OOM) if speed is None else measurement(speed)

    worker = SimulatedWorker(client, name="there", behave=behave, cluster=THERE).register()
    answer = client.post("/v1/studies", json=request)
    assert answer.status_code == 201, answer.text
    worker.work()
    return read(client, answer.json()["study_id"])


def target_question(**changes):
    workload = WORKLOAD | {"global_batch": 32}
    asked = {"model": "llama-tiny", "cluster": THERE.model_dump_json(), "workload": json.dumps(workload)}
    return asked | {"match": "exact"} | changes


def projection_of(client, study):
    return read(client, study["study_id"])["result"]["projection"]


def exported_config(client, study):
    export = client.get(f"/v1/studies/{study['study_id']}/export", params={"which": "target"}).json()
    return json.loads(export["files"]["config.json"])["config"]
