"""Studies that a simulated worker with two H100 measured."""

from shardtune.api_schemas.machines.hardware import Cluster
from tests.support.service.scenarios import THREE_BACKENDS, WORKLOAD
from tests.support.service.simulated_worker import FINGERPRINT, SPEC, SimulatedWorker, quietly

GPU = "NVIDIA H100 80GB HBM3"
CLUSTER = Cluster(gpu=GPU, gpus_per_node=2, memory_gib=80, host_memory_gib=512)
TARGET = {"target": "4x2", "workload": WORKLOAD | {"global_batch": 32}}
"""Four nodes of two GPUs; the two GPUs of the worker have a quarter of the global batch."""


def tune_on_gpus(client, **changes):
    """Finished study of the tiny Llama, projected to its target unless `changes` say otherwise."""
    devices = {"device": "cuda", "gpu": GPU, "gpu_count": 2, "gpu_memory_gib": 80.0}
    worker = SimulatedWorker(
        client, name="gpus", behave=quietly, cluster=CLUSTER, fingerprint=FINGERPRINT.model_copy(update=devices)
    ).register()
    answer = client.post("/v1/studies", json=SPEC | TARGET | THREE_BACKENDS | changes)
    assert answer.status_code == 201, answer.text
    worker.work()
    study = client.get(f"/v1/studies/{answer.json()['study_id']}").json()
    assert study["state"] == "complete", study["reason"]
    return study
