"""Pods of a gang that start at different times: none gives up while the first one has no address yet."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

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
