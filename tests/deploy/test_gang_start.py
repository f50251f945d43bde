"""Pods of a gang that start at different times wait for the first one's address, and pods that are deleted end the worker by
its signal, so that it hands its run back."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.processes.stack import until

OVERLAYS = Path(__file__).parents[2] / "deploy/kubernetes/overlays"
NAME_SERVER = """#!/bin/sh
[ "$2" = shardtune-gang-node-0-0.shardtune-gang ] || exit 3
echo asked >> asked
[ "$(wc -l < asked)" -gt "$UNKNOWN_FOR" ] || exit 2
"""
PROGRAMS = {"getent": NAME_SERVER, "sleep": "#!/bin/sh\n", "ray": '#!/bin/sh\ncat > key\necho "$@" > started\n'}


def container(overlay: str) -> dict[str, Any]:
    """The container that all pods of an overlay have."""
    first = next(yaml.safe_load_all((OVERLAYS / overlay / "gang.yaml").read_text()))
    spec = first["spec"] if first["kind"] == "JobSet" else first["spec"]["template"]["spec"]
    (found,) = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def started(folder: Path, overlay: str, **variables: str) -> list[str]:
    """Options with which a pod starts Ray at last, where names are looked up by `NAME_SERVER`."""
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    pod = container(overlay)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": "0", "SHARDTUNE_API_KEY": "key-1"}
    words = [*pod["command"], *pod["args"]]
    subprocess.run(words, cwd=folder, env=environment | variables, check=True, timeout=20)
    assert (folder / "key").read_text().strip() == "key-1"
    return (folder / "started").read_text().split()


@pytest.mark.parametrize("overlay", ["jobset", "trainer"])
def test_a_pod_waits_for_the_first_one_s_address(overlay: str, tmp_path: Path) -> None:
    words = started(tmp_path, overlay, UNKNOWN_FOR="3", RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT="900")
    assert words == ["symmetric-run", *container(overlay)["args"]]
    assert (tmp_path / "asked").read_text().split() == ["asked"] * 4


def test_a_pod_that_waited_too_long_lets_ray_name_the_problem(tmp_path: Path) -> None:
    assert started(tmp_path, "jobset", UNKNOWN_FOR="1000000", RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT="1")


RUNS = """#!/bin/bash
while [ "$1" != -- ]; do shift; done
shift
"$@"
echo $? > stopped_ray
"""
"""In place of `ray symmetric-run`: runs the command, then stops Ray; exits with 0 whatever the command did."""
WORKER = """#!/bin/bash
trap 'echo > handed_back; exit 0' TERM
echo > running
while :; do /bin/sleep 0.1; done
"""


def programs_of_a_pod(folder: Path) -> dict[str, str]:
    """Environment in which a pod's programs are stand-ins."""
    for name, text in {"getent": "#!/bin/sh\n", "sleep": "#!/bin/sh\n", "ray": RUNS, "python": WORKER}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize("overlay", ["jobset", "trainer"])
@pytest.mark.parametrize("index", ["0", "1"])
def test_a_deleted_pod_ends_its_worker_by_its_signal_and_is_not_complete(
    overlay: str, index: str, tmp_path: Path
) -> None:
    pod = container(overlay)
    environment = programs_of_a_pod(tmp_path) | {"JOB_COMPLETION_INDEX": index, "SHARDTUNE_API_KEY": "key-1"}
    with subprocess.Popen([*pod["command"], *pod["args"]], cwd=tmp_path, env=environment) as process:
        until((tmp_path / "running").exists, 20, "the pod's program runs")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert (tmp_path / "handed_back").exists()
    assert (tmp_path / "stopped_ray").read_text().strip() == "0"


def test_a_deleted_head_of_kuberay_ends_its_worker_first_and_is_not_complete(tmp_path: Path) -> None:
    job = yaml.safe_load((OVERLAYS / "kuberay/gang.yaml").read_text())
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    environment = programs_of_a_pod(tmp_path)
    (tmp_path / "key").write_text("key-1")

    def here(text: str) -> str:
        replaced = {"/run/shardtune/key": "key", "/tmp/stopped": "stopped", "/proc": str(tmp_path / "proc")}
        for path, other in replaced.items():
            text = text.replace(path, other)
        return text

    with subprocess.Popen(["sh", "-c", here(job["spec"]["entrypoint"])], cwd=tmp_path, env=environment) as process:
        until((tmp_path / "running").exists, 20, "the worker runs")
        (worker,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        words = {worker: f"/proc/{worker}", "1": "/proc/self"}
        for pid, folder in words.items():
            (tmp_path / "proc" / pid).mkdir(parents=True)
            (tmp_path / "proc" / pid / "cmdline").write_bytes(Path(folder, "cmdline").read_bytes())
        hook = [here(word) for word in head["lifecycle"]["preStop"]["exec"]["command"]]
        subprocess.run(hook, cwd=tmp_path, env=environment, check=True, timeout=20)
        assert process.wait(20) == 1
    assert (tmp_path / "handed_back").exists()
