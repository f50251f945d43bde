"""The images, built by their Containerfiles over Debian's packages, work without root on a file system they cannot write to.

The service's commands are those of the Kubernetes manifests, the worker's is a trial. Needs the network: Debian's mirror and the package index.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from tests.support.ranks.tiny_tasks import tiny_task
from tests.support.requirements import missing

REPOSITORY = Path(__file__).parents[2]
BASE = REPOSITORY / "deploy/kubernetes/base"
DATABASE = {"SHARDTUNE_DATABASE_URL": "sqlite:////tmp/shardtune.sqlite3"}

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.environ.get("SHARDTUNE_TEST_LONG") != "1", reason="minutes of building: make test-long"),
]


class Store:
    """Storage of `buildah`: a Debian of packages from its mirror, and what is built over it."""

    def __init__(self, folder: Path) -> None:
        self._buildah = ["buildah", "--storage-driver=vfs", f"--root={folder}/root", f"--runroot={folder}/run"]
        base, self._source = folder / "base.tar", folder / "source"
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", str(base)], check=True)
        bare = self.say("from", "scratch")
        self.say("add", bare, str(base), "/")
        self.say("commit", bare, "localhost/base")
        # This machine's certificates count: it may reach the package index by a proxy of its own.
        (folder / "pip.conf").write_text("[global]\ncert = /certificates.crt\n")
        self._certificates = (
            "--volume=/etc/ssl/certs/ca-certificates.crt:/certificates.crt:ro",
            f"--volume={folder}/pip.conf:/etc/pip.conf:ro",
        )
        self._source.mkdir()
        packed = subprocess.run(["git", "-C", str(REPOSITORY), "archive", "HEAD"], check=True, capture_output=True)
        subprocess.run(["tar", "--extract", f"--directory={self._source}"], input=packed.stdout, check=True)

    def build(self, name: str) -> "Image":
        """Root of an image built from its Containerfile, unpacked."""
        self.say(
            *("build", "--isolation=chroot", "--pull=never", "--build-arg=BASE=localhost/base", f"--tag={name}"),
            *self._certificates,
            *(f"--file=deploy/containers/{name}.Containerfile", str(self._source)),
        )
        say = self.say("from", f"localhost/{name}")
        return Image(Path(self.say("mount", say)), json.loads(self.say("inspect", say))["OCIv1"]["config"])

    def say(self, *words: str) -> str:
        """Tell `buildah`, and what it said last."""
        done = subprocess.run([*self._buildah, *words], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout.split()[-1] if words[0] != "inspect" else done.stdout


@dataclass(frozen=True)
class Image:
    """A root file system, and how its program starts."""

    root: Path
    config: dict[str, Any]

    @contextmanager
    def running(
        self, args: list[str], inputs: Mapping[str, str], out: IO[bytes] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The image's program as its user, in a network of its own, where the manifests mount what can be written to."""
        variables = [*self.config["Env"], *(f"{name}={value}" for name, value in inputs.items())]
        program = ["env", "-i", f"--chdir={self.config['WorkingDir']}", *variables, *self.config["Entrypoint"], *args]
        root = shlex.quote(str(self.root))
        script = f"""
            set -e
            ip link set lo up
            mount --bind {root} {root}
            mount -o remount,bind,ro {root}
            mount -t proc proc {root}/proc
            mount --bind /dev {root}/dev
            for room in {root}/tmp {root}/dev/shm {root}/work; do
                test ! -d $room || mount -t tmpfs -o mode=1777 tmpfs $room
            done
            ! touch {root}/written 2>/dev/null
            exec chroot --userspec={self.config["User"]} {root} {shlex.join(program)}
        """
        spaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
        process = subprocess.Popen([*spaces, "sh", "-c", script], stdout=out, start_new_session=True)
        try:
            yield process
        finally:
            # All of it: who changes its user loses the death signal that `unshare` gave it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    for program in ("buildah", "mmdebstrap"):
        if os.getuid() or shutil.which(program) is None:
            missing(f"{program}, with root's rights")
    folder = tmp_path_factory.mktemp("image")
    yield Store(folder)
    shutil.rmtree(folder)


def container(name: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((BASE / name).read_text())
    next_run: dict[str, Any] = next(document for document in documents if document["kind"] in ("Deployment", "Job"))
    (only,) = next_run["spec"]["template"]["spec"]["containers"]
    return dict(only)


def test_the_service_answers_without_root_on_a_file_system_that_cannot_be_written_to(store: Store) -> None:
    image = store.build("service")
    assert image.config["User"] == "10001:10001"
    service, migrate = container("service.yaml"), container("migrate.yaml")
    with image.running(migrate["args"], DATABASE) as migrating:
        assert migrating.wait(120) == 0
    inputs = DATABASE | {item["name"]: item["value"] for item in service["env"]}
    with image.running(service["args"], inputs) as serving:
        answer = await_answer(serving, service["readinessProbe"]["httpGet"]["path"])
    assert answer.startswith("200"), answer


def test_the_worker_trains_without_root_on_a_file_system_that_cannot_be_written_to(
    store: Store, tmp_path: Path
) -> None:
    image = store.build("worker")
    assert image.config["User"] == "10001:10001"
    task = tiny_task({"kind": "ddp"}).model_dump_json()
    (image.root / "task.json").write_text(task)
    stated = tmp_path / "said"
    with (
        stated.open("wb") as out,
        image.running(["--work-dir", "/work/worker", "run-trial", "/task.json", "--json"], {}, out) as training,
    ):
        assert training.wait(300) == 0
    measured = json.loads(stated.read_text())
    assert len(measured["ranks"]) == 2 and measured["tokens_per_s_per_gpu"] > 0


def await_answer(serving: subprocess.Popen[bytes], path: str) -> str:
    """Response of the service within its network: status and body."""
    ends_s = time.monotonic() + 120
    requested = (
        "import urllib.request as r, sys; a = r.urlopen(sys.argv[1], timeout=5); print(a.status, a.read().decode())"
    )
    while time.monotonic() < ends_s and serving.poll() is None:
        within = ["nsenter", "--net", f"--target={serving.pid}", "/usr/bin/env", "python3", "-c", requested]
        done = subprocess.run([*within, f"http://127.0.0.1:8470{path}"], check=False, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout
        time.sleep(0.5)
    raise AssertionError(f"no answer; the service's exit code is {serving.poll()}")
