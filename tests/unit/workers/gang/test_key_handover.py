"""Pods of a gang hand the API key to the worker once, and keep it in no environment, file or pipe of Ray's container.

The manifests' own commands run, with programs in the place of `ray` and `python` that tell what they got.
"""

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.processes.stack import until

OVERLAYS = Path(__file__).parents[4] / "deploy/kubernetes/overlays"
SECRET = "shardtune_kanarienvogel"
RAY = """#!/bin/bash
tr '\\0' '\\n' </proc/$$/environ >>"$SHOWN"
tr '\\0' '\\n' </proc/$PPID/environ >>"$SHOWN"
while [ "$1" != -- ]; do shift; done
shift
"$@"
cat >>"$SHOWN"
"""
"""Shows what ranks could read of it and of its parent, runs the worker, and shows what the worker left in the standard
input."""
GETENT = "#!/bin/bash\n"
"""Knows each host's address at once, so that a pod need not wait for the first pod's."""
WORKER = '#!/bin/bash\ncat <&"$SHARDTUNE_API_KEY_FD" >"$GOT"\n'
"""Reads its key as the worker does, to its end."""


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """Environment of a pod with those programs; what they tell is in the folder."""
    for name, text in (("ray", RAY), ("python", WORKER), ("getent", GETENT)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o700)
    return {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SHOWN": str(tmp_path / "shown"),
        "GOT": str(tmp_path / "got"),
    }


def documents(name: str) -> list[dict]:
    return [*yaml.safe_load_all((OVERLAYS / name / "gang.yaml").read_text())]


def containers(node: object) -> list[dict]:
    """All containers of a manifest, in their order."""
    if isinstance(node, list):
        return [found for item in node for found in containers(item)]
    if not isinstance(node, dict):
        return []
    return [*node.get("containers", []), *(found for item in node.values() for found in containers(item))]


def has_key(container: dict) -> bool:
    return "SHARDTUNE_API_KEY" in [variable["name"] for variable in container.get("env", [])]


@pytest.mark.parametrize("overlay", ["jobset", "trainer"])
@pytest.mark.parametrize(("index", "got"), [("0", SECRET), ("1", "")])
def test_the_first_pod_of_a_gang_gives_its_key_to_the_worker_and_no_pod_keeps_it(
    overlay: str, index: str, got: str, programs: dict[str, str], tmp_path: Path
) -> None:
    (container,) = containers(documents(overlay))
    assert has_key(container)
    environment = programs | {"SHARDTUNE_API_KEY": SECRET, "JOB_COMPLETION_INDEX": index}
    subprocess.run([*container["command"], *container["args"]], env=environment, check=True, timeout=30)
    assert (tmp_path / "got").read_text().strip() == got
    shown = (tmp_path / "shown").read_text()
    assert "JOB_COMPLETION_INDEX" in shown and SECRET not in shown


def test_rays_container_of_kuberay_gets_the_key_by_a_pipe_that_is_gone_afterwards(
    programs: dict[str, str], tmp_path: Path
) -> None:
    (job,) = documents("kuberay")
    head, keeper, node = containers(job)
    assert [has_key(container) for container in (head, keeper, node)] == [False, True, False]
    (folder,) = {mount["mountPath"] for mount in keeper["volumeMounts"]}
    here = tmp_path / "handover"
    here.mkdir()
    script = [word.replace(folder, str(here)) for word in keeper["command"]]
    entrypoint = job["spec"]["entrypoint"].replace(folder, str(here))
    environment = programs | {"SHARDTUNE_API_KEY": SECRET}
    # A container that is restarted before the worker asks still has it.
    with running(script, environment):
        wait_for(here / "key")
    with running(script, environment):
        subprocess.run(["sh", "-c", entrypoint], env=programs, check=True, timeout=30)
        assert (tmp_path / "got").read_text() == SECRET
        # The name is gone before the key is written: a container that is restarted in between offers it to nobody else.
        assert [path.name for path in here.iterdir()] == ["given"]
        # Nothing is in it, and nobody writes to it.
        again = os.open(here / "given", os.O_RDONLY | os.O_NONBLOCK)
        assert os.read(again, 100) == b""
        os.close(again)
    # A container that is restarted later gives it to nobody.
    with running(script, environment) as restarted:
        with pytest.raises(subprocess.TimeoutExpired):
            restarted.wait(timeout=0.5)
        assert [path.name for path in here.iterdir()] == ["given"]


@contextlib.contextmanager
def running(script: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Container with this command, which stops at the signal with which Kubernetes ends it."""
    container = subprocess.Popen(script, env=environment, start_new_session=True)
    try:
        yield container
    finally:
        os.killpg(container.pid, 15)
        container.wait(timeout=30)


def test_a_container_of_kuberay_that_holds_the_key_shares_no_processes_with_rays() -> None:
    (job,) = documents("kuberay")
    pod = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert not pod.get("shareProcessNamespace") and not pod.get("hostPID")
    ray, _ = pod["containers"]
    assert [mount["readOnly"] for mount in ray["volumeMounts"] if mount["name"] == "key"] == [True]
    assert shlex.split(job["spec"]["entrypoint"])[:2] == ["</run/shardtune/key", "env"]


def wait_for(path: Path) -> None:
    until(path.exists, 30, f"{path.name} is there")
