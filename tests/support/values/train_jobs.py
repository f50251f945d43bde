"""TrainJobs of Kubeflow Trainer, their admission reviews, and what a JSON patch makes of them."""

import base64
import copy
import json
from typing import Any

WORKLOAD = {"sequence_length": 4096, "global_batch": 128}


def train_job(trainer: Any = None, labels: Any = None, **annotations: Any) -> dict[str, Any]:
    """A TrainJob that asks for a recommendation for Llama 3.1 8B; `annotations` by their names without the prefix."""
    asked = {"model": "llama-3.1-8b", "workload": json.dumps(WORKLOAD)} | annotations
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {
            "name": "train",
            "namespace": "team-a",
            "labels": {"shardtune.io/recommend": "true"} if labels is None else labels,
            "annotations": {f"shardtune.io/{name}": value for name, value in asked.items() if value is not None},
        },
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {"image": "registry.example/train:1", "command": ["python", "train.py"]} | (trainer or {}),
        },
    }


def review(job: Any, **request: Any) -> bytes:
    """The admission review that Kubernetes sends when a job is created."""
    kind = {"group": "trainer.kubeflow.org", "version": "v1alpha1", "kind": "TrainJob"}
    fields = {"uid": "705ab4f5-6393", "kind": kind, "operation": "CREATE", "object": job} | request
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": fields}).encode()


def patched(job: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """The job after the answer's JSON patch, which may only add (RFC 6902)."""
    after = copy.deepcopy(job)
    for operation in json.loads(base64.b64decode(answer["response"].get("patch", base64.b64encode(b"[]")))):
        assert operation["op"] == "add"
        *above, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        place: Any = after
        for name in above:
            place = place[name]
        if isinstance(place, list):
            assert last == "-"
            place.append(operation["value"])
        else:
            place[last] = operation["value"]
    return after
