"""Launcher that starts one fresh interpreter per rank, in torchrun's environment: slower by the imports, but ranks
share nothing."""

import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shardtune.api_schemas.strategies.rank_environment import THREADS, threads_of
from shardtune.workers.launch import ANY_PORT, Launch
from shardtune.workers.launchers import parent_death
from shardtune.workers.launchers.base import LaunchFailed, LostProcess, Prepared, RankExit, RanksAlive, Unobserved
from shardtune.workers.launchers.processes import DYING_S, LAUNCH_TAG, PYTHON, kill_tagged, start_child
from shardtune.workers.launchers.standstill import PATIENCE_S, Standstill

RANK_COMMAND = (*PYTHON, "-m", "shardtune.workers.rank")
STORE_COMMAND = (*PYTHON, "-m", "shardtune.workers.rank.process.store")
_STORE_S = 120.0
"""Seconds allowed for the interpreter of the rendezvous store to start, which includes importing torch."""


class ColdLauncher(Unobserved):
    """Launcher that starts each rank in a fresh interpreter, by the command `COMMAND TRIAL_DIR PROGRAM`."""

    def __init__(
        self,
        environment: Mapping[str, str],
        launch_tag: str,
        command: Sequence[str] = RANK_COMMAND,
        dying_s: float = DYING_S,
        patience_s: float = PATIENCE_S,
    ):
        """Prepare the launcher. A rank that is stopped (SIGSTOP) for longer than `patience_s` seconds counts as
        lost."""
        self._environment = {**environment, LAUNCH_TAG: launch_tag}
        self._launch_tag = launch_tag
        self._command = command
        self._dying_s = dying_s
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._store: subprocess.Popen[bytes] | None = None
        self._exits: list[RankExit] = []
        self._patience_s = patience_s
        self._watched: dict[int, str] = {}
        """Names of the watched processes by pid: the keepers (processes that start a rank each and kill what it leaves
        behind), and the ranks."""
        self._standstill = Standstill()
        self._lost: LostProcess | None = None

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """Ends of ranks since the launch, in the order in which the launcher noticed them."""
        return tuple(self._exits)

    @property
    def lost(self) -> LostProcess | None:
        """Rank that was stopped (SIGSTOP) for too long; None if there is none. This launcher has no helper process that
        could be lost."""
        return self._lost

    def prepare(self, give_up: Callable[[], bool]) -> Prepared:
        """Return at once: this launcher needs no preparation."""
        return Prepared()

    def open_store(self, directory: Path, address: str, ports: range = ANY_PORT) -> int:
        """Start a rendezvous store in a process of its own; returns the store's port."""
        command = [*STORE_COMMAND, str(directory), str(ports.start), str(ports.stop), address]
        with (directory / "store.log").open("wb") as log:
            self._store = start_child(command, self._environment, stdout=subprocess.PIPE, stderr=log)
        assert self._store.stdout is not None
        ready = select.select([self._store.stdout], [], [], _STORE_S)[0]
        reply = self._store.stdout.readline().decode().strip() if ready else ""
        if not reply.isdecimal():
            self.kill()
            raise LaunchFailed(reply or f"the store did not start; see {directory / 'store.log'}")
        return int(reply)

    def launch(self, directory: Path, launch: Launch) -> None:
        """Start the launch's ranks, each in a fresh interpreter."""
        self._exits.clear()
        self._lost = None
        begun = launch.started()
        # A rank sets its threads once it knows its configuration, but OpenMP reads the variable when it is loaded before.
        threads = str(threads_of(self._environment, len(os.sched_getaffinity(0)), launch.ranks))
        for local_rank in range(launch.ranks):
            rank = launch.first_rank + local_rank
            environment = {**self._environment, THREADS: threads, **begun.variables(local_rank)}
            try:
                with (directory / f"rank_{rank}.log").open("wb") as log:
                    self._running[rank] = start_child(
                        [*self._command, str(directory), launch.program],
                        environment,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        kept=True,
                    )
            except OSError as error:
                self.kill()
                raise LaunchFailed(f"rank {rank} could not be started: {error}") from error
        self._watched = {}
        self._standstill = Standstill(self._watched, self._patience_s)

    def wait(self, timeout_s: float) -> None:
        """Wait, by polling, until a rank has ended."""
        ends_s = time.monotonic() + timeout_s
        while not self._reap() and self._running and time.monotonic() < ends_s:
            time.sleep(0.05)
        self._watch_started_ranks()
        if (stopped := self._standstill.stopped_process()) is not None:
            self._lost = LostProcess(f"{stopped} was stopped")

    def _watch_started_ranks(self) -> None:
        """Add the ranks to the watched processes once their keepers (the processes between launcher and rank) have started
        them."""
        for rank, process in self._running.items():
            if process.pid not in self._watched and (below := parent_death.processes_below([process.pid])):
                self._watched |= dict.fromkeys([process.pid, *below], f"rank {rank}")

    def _reap(self) -> bool:
        ended = [(rank, code) for rank, process in self._running.items() if (code := process.poll()) is not None]
        for rank, code in ended:
            del self._running[rank]
            self._exits.append(RankExit(rank, code))
        return bool(ended)

    def kill(self) -> None:
        """End the ranks and every process that they started."""
        # By tag, and below each rank's keeper: a rank's own children, such as compilers, may have left its process group.
        survivors = kill_tagged(self._launch_tag, dying_s=self._dying_s)
        if survivors:
            raise RanksAlive(f"processes {sorted(survivors)} survived SIGKILL; the devices are not free")
        for process in self._running.values():
            process.wait()
        if self._store is not None:
            self._store.communicate()
            self._store = None
        self._reap()

    def close(self) -> None:
        """End the ranks and close the launcher."""
        self.kill()
