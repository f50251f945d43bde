"""Processes of a soak: replicas whose statements fail, workers, and a library that slows down `fsync`."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.service.soak import faulty_service
from shardtune.service.cli.parent_death import dies_with_parent
from tests.support.service.replica import Replica


class WorkerProcess:
    """A simulated worker in a process of its own, so that it can be killed."""

    def __init__(self, name: str, urls: list[str], log: Path) -> None:
        self._command = [sys.executable, "-m", "benchmarks.service.soak.worker_process", name, *urls]
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a new life."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                dies_with_parent(self._command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """End this life without a word."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


class FaultyReplica(Replica):
    """A replica a share of whose statements fails, hangs or loses its answer; each life by a seed of its own."""

    MODULE = "benchmarks.service.soak.faulty_service"

    def __init__(
        self,
        url: str,
        log: Path,
        seed: int,
        rate: float,
        record: Path,
        environment: Mapping[str, str],
        **settings: Any,
    ) -> None:
        """`rate`: share of statements and of COMMITs with a fault; `record`: file that gets a line for each."""
        super().__init__(url, log, environment=environment, is_cold=True, **settings)
        self._seed, self._rate, self._record, self._lives = seed, rate, record, 0

    def start(self) -> None:
        """Start the next life."""
        self._lives += 1
        fields = {"seed": self._seed * 1000 + self._lives, "rate": self._rate, "record": str(self._record)}
        self.use_environment({faulty_service.VARIABLE: json.dumps(fields)})
        super().start()


class SlowFsync:
    """A preloaded library, compiled from `slow_fsync.c`: `fsync` of the processes with `environment` takes 0.4 s while
    it is slow."""

    def __init__(self, folder: Path) -> None:
        """Compile the library into a folder that the database's user may enter."""
        library, self._switch = folder / "slow_fsync.so", folder / "fsync-is-slow"
        source = Path(__file__).with_name("slow_fsync.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
        library.chmod(0o755)
        self.environment = {"LD_PRELOAD": str(library), "SHARDTUNE_SLOW_FSYNC": str(self._switch)}

    def begin(self) -> None:
        """Slow down from now on."""
        self._switch.touch()

    def end(self) -> None:
        """Be as fast as the disk is."""
        self._switch.unlink(missing_ok=True)
