"""Launcher that has ranks forked by a fork server, which has torch, transformers and deepspeed imported already.

Exchanges JSON lines with `workers.rank.fork_server.server`: sends `store`, `launch` and `kill`; receives `ready`
or `failed`, then `store`, `started`, `exited` and `rejected`. A dead fork server is replaced at the next `prepare`.
"""

import json
import logging
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from shardtune.api_schemas.access import private_folder
from shardtune.workers.launch import ANY_PORT, Launch
from shardtune.workers.launchers.base import LaunchFailed, LostProcess, Prepared, RankExit, RanksAlive, Unobserved
from shardtune.workers.launchers.processes import (
    DYING_S,
    LAUNCH_TAG,
    PYTHON,
    kill_tagged,
    start_child,
    tagged_processes,
)
from shardtune.workers.launchers.standstill import PATIENCE_S, Standstill
from shardtune.workers.trial_dir import tail

FORK_SERVER_COMMAND = (*PYTHON, "-m", "shardtune.workers.rank.fork_server")
_STORE_S = 30.0

log = logging.getLogger(__name__)


class ForkUnsafe(LaunchFailed):
    """Exception of the fork server: forked ranks cannot work on this machine, so that ranks must be started in fresh
    interpreters."""


class ForkServerLauncher(Unobserved):
    """Launcher that starts ranks through one fork server process, which it owns."""

    def __init__(
        self,
        environment: Mapping[str, str],
        launch_tag: str,
        log_path: Path,
        ready_timeout_s: float = 1200.0,
        command: Sequence[str] = FORK_SERVER_COMMAND,
        dying_s: float = DYING_S,
        patience_s: float = PATIENCE_S,
        start: Callable[..., "subprocess.Popen[bytes]"] = start_child,
    ):
        """Prepare the launcher.

        Args:
            dying_s: seconds that the server may take to end its ranks before it is killed, and that killed ranks may
                take to disappear.
            patience_s: seconds for which the server or a rank may be stopped (SIGSTOP) before it counts as lost.
            start: function that starts the server's process; it takes the arguments of `start_child`.
        """
        self._start = start
        self._environment = {**environment, LAUNCH_TAG: launch_tag}
        self._launch_tag = launch_tag
        self._log_path = log_path
        self._ready_timeout_s = ready_timeout_s
        self._command = command
        self._dying_s = dying_s
        self._server: subprocess.Popen[bytes] | None = None
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._prepared: Prepared | None = None
        self._server_pids: set[int] = set()
        """Pids of the fork server and its helper processes, which live on after a trial."""
        self._patience_s = patience_s
        self._standstill = Standstill()
        self._launched: str | None = None
        """Trial directory of the launch in progress, or of a launch that is about to begin and for which a rendezvous
        store was opened."""
        self._ranks = 0
        self._port: int | None = None
        self._has_store = False
        self._exits: list[RankExit] = []
        self._lost: LostProcess | None = None

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """Ends of ranks since the launch, in the order in which the launcher noticed them."""
        return tuple(self._exits)

    @property
    def lost(self) -> LostProcess | None:
        """Process that was lost during this launch: the fork server if it died, or the server or a rank that was
        stopped (SIGSTOP) for too long. None if none was."""
        return self._lost

    def prepare(self, give_up: Callable[[], bool]) -> Prepared:
        """Make sure that a fork server is alive: start one if needed, and wait until it is ready to fork ranks."""
        if self._server is None or self._server.poll() is not None or self._prepared is None:
            self._end_server()
            self._start_server()
            self._prepared = self._await_ready(give_up)
        return self._prepared

    def _start_server(self) -> None:
        private_folder.make(self._log_path.parent, "work_dir")
        self._events = queue.Queue()
        with self._log_path.open("wb") as stderr:
            self._server = self._start(
                self._command,
                self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                isolated=True,
            )
        assert self._server.stdout is not None
        threading.Thread(
            target=_read_events, args=(self._server.stdout, self._events), name="fork-server-events", daemon=True
        ).start()

    def _await_ready(self, give_up: Callable[[], bool]) -> Prepared:
        ends_s = time.monotonic() + self._ready_timeout_s
        while not give_up():
            try:
                event = self._events.get(timeout=0.2)
            except queue.Empty:
                if time.monotonic() < ends_s:
                    continue
                self._fail(f"was not ready after {self._ready_timeout_s:.0f} s")
            if event is None:
                self._fail("ended before it was ready")
            elif event.get("event") == "failed":
                self._end_server()
                raise LaunchFailed(f"{event.get('reason')}; see {self._log_path}")
            elif event.get("event") == "ready":
                if event.get("unsafe") is not None:
                    self._end_server()
                    raise ForkUnsafe(str(event["unsafe"]))
                return Prepared(
                    libraries=event.get("libraries"),
                    isolation=str(event.get("isolation")),
                    operators_built=event.get("operators_built"),
                )
        self._end_server()
        raise LaunchFailed("asked to stop while the fork server was starting")

    def _fail(self, problem: str) -> None:
        self._end_server()
        end = (tail(self._log_path, 1500) or "").strip()
        raise LaunchFailed(
            f"the fork server {problem}; see {self._log_path}, or run with --cold. Its last words:\n{end or '(none)'}"
        )

    def open_store(self, directory: Path, address: str, ports: range = ANY_PORT) -> int:
        """Order the fork server to start a process with a rendezvous store; returns the store's port."""
        self._begin(directory)
        self._send_order({"store": str(directory), "ports": [ports.start, ports.stop], "address": address})
        ends_s = time.monotonic() + _STORE_S
        while self._port is None:
            if self._lost is not None or time.monotonic() > ends_s:
                self.kill()
                raise LaunchFailed(f"the fork server opened no store; see {self._log_path}")
            self.wait(0.2)
        return self._port

    def launch(self, directory: Path, launch: Launch) -> None:
        """Order the fork server to start the ranks of a launch."""
        if self._port is None:
            self._begin(directory)
        self._ranks = launch.ranks
        self._send_order({"launch": str(directory), "as": launch.started().model_dump(mode="json")})

    def _begin(self, directory: Path) -> None:
        assert self._server is not None, "prepare first"
        self._exits.clear()
        self._lost = None
        # Listed before ranks exist: every other process with the tag later belongs to the launch.
        self._server_pids = tagged_processes(self._launch_tag)
        self._watch_for_stops()
        self._launched, self._ranks, self._port, self._has_store = str(directory), 0, None, False

    def _watch_for_stops(self, ranks: Collection[int] = ()) -> None:
        names = dict.fromkeys(self._server_pids, "the fork server") | dict.fromkeys(ranks, "a rank")
        self._standstill = Standstill(names, self._patience_s)

    def _send_order(self, message: Mapping[str, Any]) -> None:
        if not self._send(message):
            self._launched = self._port = None
            raise LaunchFailed(f"the fork server is gone; see {self._log_path}")

    def _send(self, message: Mapping[str, Any]) -> bool:
        assert self._server is not None
        assert self._server.stdin is not None
        try:
            self._server.stdin.write(json.dumps(message).encode() + b"\n")
            self._server.stdin.flush()
        except OSError:  # its end of the pipe is closed
            return False
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait for the fork server's next event and handle it."""
        if self._lost is not None or self._launched is None:
            return
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            if (stopped := self._standstill.stopped_process()) is not None:
                self._lost = LostProcess(f"{stopped} was stopped")
            return
        if event is None:
            assert self._server is not None
            self._lost = LostProcess(f"the fork server ended with exit code {self._server.wait()}")
        # An event of an earlier launch may come late.
        elif event.get("dir") != self._launched:
            return
        elif event.get("event") == "started":
            # The event's pids are those of the server's PID namespace, not of this one.
            self._watch_for_stops(tagged_processes(self._launch_tag) - self._server_pids)
        elif event.get("event") == "store":
            self._port, self._has_store = int(event["port"]), True
        elif event.get("event") == "closed":
            self._has_store = False
        elif event.get("event") == "rejected":
            self._ranks = 0
            raise LaunchFailed(f"the fork server rejected: {event.get('reason')}")
        elif event.get("event") == "exited":
            self._exits.append(RankExit(int(event["rank"]), int(event["code"])))

    @property
    def _is_busy(self) -> bool:
        """Whether the fork server still has child processes. Until it has collected their exit codes, it starts nothing
        else."""
        return len(self._exits) < self._ranks or self._has_store

    def kill(self) -> None:
        """Order the fork server to end the ranks. Kill the processes that are still alive, and the server itself if
        necessary."""
        if self._launched is None:
            return
        if self._is_busy and self._send({"kill": self._launched}):
            ends_s = time.monotonic() + self._dying_s
            while self._is_busy and self._lost is None and time.monotonic() < ends_s:
                self.wait(0.1)
        obeyed = not self._is_busy and self._lost is None
        if not obeyed:
            self._end_server()
        survivors = kill_tagged(self._launch_tag, self._server_pids if obeyed else (), self._dying_s)
        if survivors:
            raise RanksAlive(f"processes {sorted(survivors)} survived SIGKILL; the devices are not free")
        self._launched = self._port = None

    def _end_server(self) -> None:
        server, self._server, self._prepared = self._server, None, None
        if server is None:
            return
        # By launch tag, not by pid alone: the ranks of a server that does not answer have to go as well. The server's own
        # process is last: as a keeper it still holds the orphans of its ranks.
        survivors = kill_tagged(self._launch_tag, dying_s=self._dying_s)
        server.kill()
        server.wait()
        for pipe in (server.stdin, server.stdout):
            assert pipe is not None
            _close_quietly(pipe)
        if survivors:
            raise RanksAlive(f"processes {sorted(survivors)} survived SIGKILL; the devices are not free")

    def close(self) -> None:
        """End the ranks and the fork server, and close the launcher."""
        self._launched = self._port = None
        self._end_server()


def _read_events(stdout: IO[bytes], events: "queue.Queue[dict[str, Any] | None]") -> None:
    """Read the fork server's events in a thread until the server closes its end of the pipe. The last event, None,
    marks this end."""
    try:
        for line in stdout:
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if isinstance(event, dict):
                events.put(event)
            else:
                log.warning("the fork server printed something that is no event: %r", line[:200])
    except (OSError, ValueError):  # closed by _end_server meanwhile
        pass
    events.put(None)


def _close_quietly(pipe: IO[bytes]) -> None:
    with suppress(OSError):  # bytes that the dead server never read
        pipe.close()
