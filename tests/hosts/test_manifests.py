"""Commands of the Kubernetes manifests, unchanged except for sizes, on made-up hosts: a worker over all of them, which
a study is finished on. Pods, their names and their volumes are the laboratory's.
"""

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab import requirements
from tests.lab.hosts import REPOSITORY, Host
from tests.lab.laboratory import Laboratory, for_this_process
from tests.lab.service import LabService
from tests.support.processes.stack import TINY

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.environ.get("SHARDTUNE_TEST_LONG") != "1", reason="minutes of Ray's daemons: make test-long"),
]
OVERLAYS = REPOSITORY / "deploy/kubernetes/overlays"
SMALLER = {
    "--min-nodes=4": "--min-nodes=2",
    "--nodes=4": "--nodes=2",
    "--num-gpus=8": "--num-gpus=0",
    "--work-dir=/work/worker": "--work-dir=/tmp/work",
    "/work": "/tmp/work",
}
"""Two hosts without GPUs instead of four with eight; what a pod mounts is in its /tmp."""
HANDOVER = ("/run/shardtune", "/tmp")
"""Folder of KubeRay's pod in which the worker gets its key, and the one here."""
ONE_RANK = {"RANKS": "1", "MEMORY_GIB": "1", "BUILD_OPERATORS": "false", "MEASURE_RATES": "false"}
TOKEN = "0123456789abcdef" * 4


class Pods:
    """The laboratory's hosts as pods that know each other, and the service, by the manifests' names."""

    def __init__(self, laboratory: Laboratory, service: LabService) -> None:
        self.nodes, self.service = laboratory.nodes, service
        with (laboratory.claim.folder / "hosts").open("a") as names:
            print(laboratory.gateway, "shardtune", file=names)
            print(self.nodes[0].address, "shardtune-gang-node-0-0.shardtune-gang", file=names)

    def run(self, host: Host, container: dict[str, Any], words: list[str], pod: str = "") -> None:
        """Run the container's command with its variables."""
        own = {variable["name"]: self._value(variable, pod) for variable in container.get("env", [])}
        inputs = {f"SHARDTUNE_WORKER_{name}": value for name, value in ONE_RANK.items()} | own
        inputs["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        smaller = [SMALLER.get(word, word).replace("$(POD_NAME)", pod).replace(*HANDOVER) for word in words]
        host.daemon("container", ["env", *(f"{name}={value}" for name, value in inputs.items()), *smaller], {})

    def _value(self, variable: dict[str, Any], pod: str) -> str:
        if variable["name"] == "SHARDTUNE_API_KEY":
            return self.service.key_file.read_text()
        if "value" in variable:
            return str(variable["value"])
        return TOKEN if "secretKeyRef" in variable["valueFrom"] else pod

    def finish_a_study(self, worker: str, nodes: int) -> None:
        """Finish a study on the worker of that name, after it registered."""
        (first,) = self.service.await_true(
            lambda: self.service.get("/v1/workers")["workers"], 300, "the worker registers"
        )
        cluster = first["inventory"]["cluster"]
        assert (first["name"], cluster["nodes"]) == (worker, nodes)
        study = self.service.create(
            {
                "model": TINY,
                "workload": {"sequence_length": 32, "global_batch": 8, "precision": "fp32"},
                "cluster": cluster,
                "budget": {"max_trials": 1, "max_pairs": 7, "resume_check": False, "repeat_disturbed": 0},
                "space": {"backends": ["ddp"], "knobs": {"micro_batch": [1]}},
            }
        )
        ask = lambda: self.service.get(f"/v1/studies/{study}")["state"] == "complete"  # noqa: E731
        self.service.await_true(ask, 300, "the study ends")


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    requirements.require("ray")
    with for_this_process(hosts=3, ranks=1) as laboratory, LabService(laboratory, tmp_path) as service:
        yield Pods(laboratory, service)


def containers(name: str) -> list[dict[str, Any]]:
    """All of an overlay's file, in the order in which they stand there."""
    return [
        container for document in yaml.safe_load_all((OVERLAYS / name).read_text()) for container in found_in(document)
    ]


def found_in(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield from node.get("containers", [])
        for value in node.values():
            yield from found_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from found_in(value)


@pytest.mark.parametrize("overlay", ["jobset", "trainer"])
def test_pods_that_are_all_alike_start_ray_and_the_worker(pods: Pods, overlay: str) -> None:
    (container,) = containers(f"{overlay}/gang.yaml")
    for index, host in enumerate(pods.nodes[:2]):
        # Kubernetes gives it to every pod of an indexed job.
        number = {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
        pods.run(host, container | {"env": [*container["env"], number]}, [*container["command"], *container["args"]])
    pods.finish_a_study("shardtune-gang", nodes=2)


def test_the_job_of_a_ray_cluster_is_the_worker(pods: Pods) -> None:
    """The operator's part is played: `ray start` with the groups' parameters and the token, and the job on the head."""
    (job,) = yaml.safe_load_all((OVERLAYS / "kuberay/gang.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"]["mode"] == "token"
    head, keeper, node = containers("kuberay/gang.yaml")
    first, *others = pods.nodes
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_ADDRESS": f"{first.address}:6379"}
    for container in (head, node):
        container["env"] += [{"name": name, "value": value} for name, value in token.items()]
    pods.run(first, head, [*started(cluster["headGroupSpec"], first), "--head", "--port=6379", "--disable-usage-stats"])
    pods.service.await_true(lambda: listens(first.address), 120, "Ray's head listens")
    for host in others:
        words = started(cluster["workerGroupSpecs"][0], host)
        pods.run(host, node, [*words, f"--address={token['RAY_ADDRESS']}"])
    pods.run(first, keeper, keeper["command"])
    # Ray's dashboard gives the entry point to a shell.
    words = [SMALLER.get(word, word) for word in shlex.split(job["spec"]["entrypoint"])]
    pods.run(first, head, ["sh", "-c", " ".join(words)])
    pods.finish_a_study("shardtune-gang", nodes=2)


def started(group: dict[str, Any], host: Host) -> list[str]:
    parameters = [f"--{name}={value}" for name, value in group["rayStartParams"].items()]
    return ["ray", "start", "--block", f"--node-ip-address={host.address}", *parameters]


def listens(address: str) -> bool:
    try:
        socket.create_connection((address, 6379), 1).close()
    except OSError:
        return False
    return True


def test_a_worker_of_one_host_has_its_pod_s_name(pods: Pods) -> None:
    (container,) = containers("one-host-workers/workers.yaml")
    image = (REPOSITORY / "deploy/containers/worker.Containerfile").read_text()
    (entry,) = [
        json.loads(line.removeprefix("ENTRYPOINT")) for line in image.splitlines() if line.startswith("ENTRYPOINT")
    ]
    pods.run(pods.nodes[0], container, [*entry, *container["args"]], pod="shardtune-worker-0")
    pods.finish_a_study("shardtune-worker-0", nodes=1)
