"""A worker's place with a real fork server, in a fork of the process that has the ranks' libraries imported."""

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.workers.agent.attempt import Workplace
from shardtune.workers.launchers.fork_server import ForkServerLauncher
from tests.rank.helpers.fork_server_process import serve_on
from tests.support.processes import preloaded_forks

_NAMES = ("driver", "cuda", "nccl", "torch", "deepspeed", "transformers", "gpu_memory_gib")


class ForkedServer:
    """Fork server that did not import its libraries itself, with what a launcher asks of a `subprocess.Popen`.

    /proc shows no launch tag of it: a launcher finds the programs that its ranks start, and ends the others through it.
    """

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        pipes = [log.with_name(f"{name}-{uuid.uuid4().hex[:8]}") for name in ("orders", "events")]
        for pipe in pipes:
            os.mkfifo(pipe)
        self._process = preloaded_forks.fork(serve_on, *pipes, output=log, environment=environment)
        self.stdin, self.stdout = pipes[0].open("wb"), pipes[1].open("rb")

    def poll(self) -> int | None:
        """Exit code; None while it runs."""
        return self._process.exitcode

    def wait(self) -> int:
        """Exit code, once it has ended."""
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        return code

    def kill(self) -> None:
        """End it, and with it its ranks."""
        self._process.kill()


def _start(_command: object, environment: Mapping[str, str], stderr: IO[bytes], **_: Any) -> "subprocess.Popen[bytes]":
    return cast("subprocess.Popen[bytes]", ForkedServer(environment, Path(stderr.name)))


@contextlib.contextmanager
def workplace(folder: Path, ranks: int) -> Iterator[Workplace]:
    name, log = f"test-{uuid.uuid4().hex[:12]}", folder / "host.log"
    launcher = ForkServerLauncher(os.environ, name, log, ready_timeout_s=120, start=_start)
    launcher.prepare(lambda: False)
    fingerprint = Fingerprint(
        **dict.fromkeys(_NAMES), device="cpu", gpu="cpu", gpu_count=0, python="3", kernel="6", cpu="x", cpu_count=2,
        host_memory_gib=8,
    )  # fmt: skip
    try:
        yield Workplace(folder, launcher, fingerprint, ranks=ranks, peak_flops=None, min_free_gib=0)
    finally:
        launcher.close()
