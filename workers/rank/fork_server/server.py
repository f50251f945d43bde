"""The fork server: imports torch, deepspeed and transformers once and forks the ranks of each trial.

A forked rank is a fresh process (clean device context, its memory freed when it exits) that need not spend seconds on
imports. The server itself touches no device and starts no thread. `python -m shardtune.workers.rank.fork_server [RANKS]`
exchanges JSON lines: see `ForkServer`.
"""

import contextlib
import fcntl
import gc
import json
import os
import selectors
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cpuinfo  # type: ignore[import-untyped]

from shardtune.api_schemas.trials.leases import uses_cpu_adam
from shardtune.workers.launch import Launch
from shardtune.workers.rank import inventory, trial_dir
from shardtune.workers.rank.fork_server import early_imports, forking
from shardtune.workers.rank.process import cpu_adam, cpu_time, deadline, parent_death

_DEADLINE_POLL_S = 0.5


class ForkServer:
    """Fork server that reads orders from one file descriptor and writes events to another, both as JSON lines. It runs
    one launch at a time.

    There are three orders. `{"store": dir, "ports": [first, stop], "address": one of this host}` starts the store where
    the ranks rendezvous. `{"launch": dir, "as": a Launch}` forks the ranks. `{"kill": dir}` kills them. When the input
    ends, the server kills all ranks and ends.

    There are six events. `ready` comes once, with the facts of `workers.rank.inventory`, or with the reason why no rank
    can be forked; `failed` in its place comes from `__main__`, if a library cannot be imported. `store` names the
    store's port, or says `closed` when the store has ended. `started` lists the pids. `exited` comes for each rank with
    its exit code (negative: the signal). `rejected` gives the reason why an order cannot be carried out.
    """

    def __init__(self, orders: int, events: int, ranks: int | None = None) -> None:
        """Prepare the fork server. `ranks`: number of ranks to assume when the speed of one rank is measured; if None,
        no speed is measured."""
        self._orders = orders
        self._events = events
        self._speed_ranks = ranks
        self._unread = b""
        self._folder: str | None = None
        self._ranks: dict[int, int] = {}
        """Rank numbers of the launch in progress, by pid."""
        self._store: int | None = None
        """Pid of the process that serves the rendezvous store of the launch; None if this host serves no store."""

    def run(self) -> None:
        """Read and execute orders until the end of input."""
        wakeup_read, wakeup_write = os.pipe()
        for descriptor in (wakeup_read, wakeup_write):
            os.set_blocking(descriptor, False)
        # SIGCHLD must wake the selector: a handler alone would not interrupt it for good (PEP 475).
        signal.set_wakeup_fd(wakeup_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for name in early_imports.LATE_IMPORTS:
            early_imports.import_if_there(name)
        self._send(
            {
                "event": "ready",
                **self._probe(),
                "isolation": os.environ.get("SHARDTUNE_ISOLATION", "none: not asked for"),
            }
        )
        with selectors.DefaultSelector() as selector:
            selector.register(self._orders, selectors.EVENT_READ)
            selector.register(wakeup_read, selectors.EVENT_READ)
            open_ = True
            while open_:
                for key, _ in selector.select(timeout=None if self._folder is None else _DEADLINE_POLL_S):
                    if key.fd == wakeup_read:
                        os.read(wakeup_read, 4096)
                    else:
                        open_ = self._read_orders()
                self._reap()
                # A stopped agent (SIGSTOP) cannot end its ranks, nor a stopped rank itself: this process keeps the deadline.
                if self._folder is not None and deadline.has_passed(Path(self._folder)):
                    self._kill_all()
        self._kill_all()

    def _probe(self) -> dict[str, Any]:
        try:
            return {**forking.probe(self._facts), "unsafe": None}
        except forking.CannotFork as error:
            return {"libraries": None, "operators_built": None, "unsafe": str(error)}

    def _facts(self) -> forking.Facts:
        # In the forked child: whether CPU Adam is built is asked of a module that asks NVML for GPUs as it is imported.
        return {"libraries": inventory.describe(self._speed_ranks), "operators_built": cpu_adam.is_built()}

    def _read_orders(self) -> bool:
        """Execute the complete order lines that have arrived; returns False at the end of input."""
        chunk = os.read(self._orders, 65536)
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for line in filter(None, lines):
            order = json.loads(line)
            if "store" in order:
                self._open_store(order["store"], range(*order["ports"]), order["address"])
            elif "launch" in order:
                self._launch(order["launch"], Launch.model_validate(order["as"]))
            elif order.get("kill") == self._folder:
                self._kill_all()
        return bool(chunk)

    def _is_free(self, folder: str) -> bool:
        """Whether no other launch is in progress, so that an order can be carried out. If one is, the order is
        rejected."""
        # A launch that was killed a moment ago may have ended unnoticed.
        self._reap()
        if self._folder in (None, folder) and not self._ranks:
            return True
        self._send({"event": "rejected", "dir": folder, "reason": f"{self._folder} still runs; kill it first"})
        return False

    def _open_store(self, folder: str, ports: range, address: str) -> None:
        if not self._is_free(folder):
            return
        pid, reply = forking.fork_store(Path(folder), ports, address)
        if reply.isdecimal():
            self._folder, self._store = folder, pid
            self._send({"event": "store", "dir": folder, "port": int(reply)})
        else:
            forking.kill_group(pid)
            self._send({"event": "rejected", "dir": folder, "reason": reply})

    def _launch(self, folder: str, launch: Launch) -> None:
        if not self._is_free(folder):
            return
        before_s = cpu_time.own_s()
        if launch.program == "trial":
            try:
                task = trial_dir.read_task(Path(folder))
            except (OSError, ValueError) as error:
                self._send({"event": "rejected", "dir": folder, "reason": str(error)})
                return
            early_imports.preload(task)
            if uses_cpu_adam(task):
                cpuinfo.get_cpu_info()
        self._folder = folder
        self._fork_ranks(folder, launch, before_s)

    def _fork_ranks(self, folder: str, launch: Launch, before_s: float) -> None:
        """Fork the ranks of a launch. `before_s`: CPU seconds that this process had used before it prepared the launch."""
        (Path(folder) / "store").unlink(missing_ok=True)
        host = os.getpid()
        # Frozen objects are not touched by the children's collections, so that their pages stay shared.
        gc.collect()
        gc.freeze()
        # The import of an architecture, or a look at the processor, takes seconds once and is no other program's load.
        prepared = {cpu_time.PREPARATION_VARIABLE: f"{cpu_time.own_s() - before_s:.3f}"}
        for local_rank in range(launch.ranks):
            pid = os.fork()
            if pid == 0:
                variables = launch.variables(local_rank) | (prepared if local_rank == 0 else {})
                forking.become_rank(Path(folder), launch.program, variables, host)
            forking.lead_group(pid)
            self._ranks[pid] = launch.first_rank + local_rank
        self._send({"event": "started", "dir": folder, "pids": list(self._ranks)})

    def _reap(self) -> None:
        for pid, code in _ended_children():
            if pid == self._store:
                self._store = None
                self._send({"event": "closed", "dir": self._folder})
            # As process 1 of a namespace, this process also inherits orphans that ranks leave behind.
            if pid in self._ranks:
                # A rank may have left children of its own, such as compiler processes.
                forking.kill_group(pid)
                self._send({"event": "exited", "dir": self._folder, "rank": self._ranks.pop(pid), "code": code})
        if not self._ranks and self._store is None:
            self._folder = None

    def _kill_all(self) -> None:
        for pid in (*self._ranks, *([] if self._store is None else [self._store])):
            forking.kill_group(pid)

    def _send(self, event: dict[str, Any]) -> None:
        os.write(self._events, json.dumps(event).encode() + b"\n")


def _ended_children() -> Iterator[tuple[int, int]]:
    """Pid and exit code of each child process that has ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)


def serve(ranks: int | None = None) -> None:
    """Run a fork server on this process's standard input and output; `ranks` is passed on to `ForkServer`."""
    parent_death.tie_to_parent()
    events = os.dup(1)
    fcntl.fcntl(events, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    # Libraries print; only events may reach the agent.
    os.dup2(2, 1)
    ForkServer(orders=0, events=events, ranks=ranks).run()
