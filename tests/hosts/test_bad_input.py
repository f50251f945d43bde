"""Mistakes of users about hosts, over the engines' real daemons: exit code 2 (`setup` on a run), host and remedy in
words, and
nothing left behind on any host.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest

from shardtune.api_schemas.machines.engines import EngineName
from shardtune.api_schemas.trials.leases import TrialTask
from tests.lab import requirements
from tests.lab.hosts import Host
from tests.lab.laboratory import HEAD, Laboratory, for_this_process
from tests.lab.session import GangSession
from tests.support.ranks.tiny_tasks import tiny_task

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("SHARDTUNE_TEST_LONG") != "1", reason="minutes of daemons: make test-long"),
]
SCRIPT = "/tmp/plain.py"
"""Each host has a /tmp of its own."""


@pytest.fixture(scope="module", params=get_args(EngineName))
def laboratory(request: pytest.FixtureRequest) -> Iterator[Laboratory]:
    requirements.require(request.param)
    with for_this_process(hosts=2, ranks=1, engine=request.param) as running_laboratory:
        yield running_laboratory


def detect(laboratory: Laboratory, *options: str) -> str:
    """Output of a worker over all hosts whose settings are rejected, after it ended with exit code 2."""
    engine = laboratory.claim.plan.engine
    words = [sys.executable, "-m", "shardtune.workers", "detect", "--launcher", engine, "--nodes", "2", "--cold"]
    words += ["--ranks", "1", "--memory-gib", "1", "--work-dir", "/tmp/work", *options]
    allocation = ["salloc", "--quiet", "--nodes=2", "--exclusive"] if engine == "slurm" else []
    return rejected(laboratory, HEAD, [*allocation, *words])


def rejected(laboratory: Laboratory, host: str, words: list[str]) -> str:
    running = laboratory.start(host, words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _, stated = running.communicate(timeout=300)
    assert running.returncode == 2, stated.decode()
    assert_nothing_is_left(laboratory)
    last = stated.decode().strip().splitlines()[-1]
    assert last.startswith("error: ") and b"Traceback" not in stated, stated.decode()
    return last


def assert_nothing_is_left(laboratory: Laboratory) -> None:
    ends_s = time.monotonic() + 60
    while any(host.find("shardtune.workers") for host in laboratory.hosts):
        assert time.monotonic() < ends_s, "a worker's process lives"
        time.sleep(0.2)


def on(host: Host, *words: str) -> None:
    subprocess.run(host.command(words), check=True)


def test_a_blocked_port_is_told_with_who_does_not_reach_which_address(laboratory: Laboratory) -> None:
    first, other = laboratory.nodes
    rules = [(first, other.address), (other, first.address)]
    for host, address in rules:
        on(host, *f"ip rule add to {address} ipproto tcp dport 7000 prohibit".split())
    try:
        output = detect(laboratory, "--meet-ports", "7000-7000")
    finally:
        for host, address in rules:
            on(host, *f"ip rule delete to {address} ipproto tcp dport 7000 prohibit".split())
    # Which of them is the first, where ranks meet, is the engine's to say.
    reported = [f"does not reach {host.address}:7000 of host {host.name}" in output for host in (first, other)]
    assert reported.count(True) == 1 and "--meet-ports FIRST-LAST" in output, output
    assert f"host {(other if reported[0] else first).name}" in output


def test_a_folder_that_is_not_shared_is_told_with_the_host_that_does_not_see_it(laboratory: Laboratory) -> None:
    output = detect(laboratory, "--shared-dir", "/tmp/together")
    assert "shared_dir (/tmp/together) is not the same folder on host n" in output
    assert "give --shared-dir a folder of a file system that every host has mounted there" in output
    assert laboratory.run(HEAD, ["ls", "-A", "/tmp/together"]) == ""


def test_a_script_that_one_host_lacks_is_told_with_the_host(laboratory: Laboratory) -> None:
    first, last = laboratory.nodes
    assert laboratory.head is not None
    for host in (laboratory.head, first):
        on(host, "touch", SCRIPT)
    output = detect(laboratory, "--allow-script", f"plain={SCRIPT}")
    assert output.startswith(f"error: host {last.name}") and "must name a Python script that exists" in output


def test_a_script_that_one_host_has_lost_is_the_run_s_failure_and_names_the_host(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    for host in laboratory.hosts:
        on(host, "touch", SCRIPT)
    task = tiny_task({"kind": "ddp"}, ranks=2).model_dump(mode="json")
    cluster = {**task["cluster"], "nodes": 2, "gpus_per_node": 1, "memory_gib": 1}
    scripted = TrialTask.model_validate({**task, "model": {"script": "plain"}, "cluster": cluster})
    allowed = {"plain": SCRIPT}
    with closing(GangSession(laboratory, tmp_path, ranks=1, allowed_scripts=allowed, cold=True)) as session:
        session.ready()
        on(laboratory.nodes[-1], "rm", SCRIPT)
        failure = session.run(scripted)["result"]
    assert failure["kind"] == "setup" and f"host {laboratory.nodes[-1].name}" in failure["message"]
    assert f"({SCRIPT}) does not exist any more; put it back" in failure["message"]
    assert_nothing_is_left(laboratory)


def test_an_open_ray_cluster_is_not_joined() -> None:
    requirements.require("ray")
    with for_this_process(hosts=1, ranks=1) as laboratory:
        (host,) = laboratory.nodes
        ray = [
            str(Path(sys.executable).parent / "ray"),
            "start",
            "--head",
            "--port=6379",
            "--num-cpus=1",
            "--num-gpus=0",
        ]
        ray += ["--include-dashboard=false", "--disable-usage-stats", f"--node-ip-address={host.address}"]
        open_ = host.daemon("ray", [*ray, "--object-store-memory=80000000"], {"RAY_AUTH_MODE": "disabled"})
        assert open_.wait(120) == 0
        worker = [sys.executable, "-m", "shardtune.workers", "detect", "--launcher", "ray", "--nodes", "1"]
        worker += ["--ray-address", f"{host.address}:6379", "--work-dir", "/tmp/work"]
        shown = ["env", "RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN=0123456789abcdef0123456789abcdef"]
        stated_rejected = rejected(laboratory, host.name, [*shown, *worker])
        assert (
            "answers without a token: the cluster is open" in stated_rejected
            and "Start all of it with RAY_AUTH_MODE=token" in stated_rejected
        )
        stated_rejected = rejected(laboratory, host.name, ["env", "--unset=RAY_AUTH_MODE", *worker])
        assert "RAY_AUTH_MODE (not set) must be token" in stated_rejected
