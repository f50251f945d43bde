"""Child processes that die with this process, and the search for every process of a device pool in order to end it.

Processes are found by an environment variable that descendants inherit, whatever process group or parent they end up
with. One that sheds its environment is found below its keeper or fork server. No process is ever killed by its name.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from shardtune.api_schemas.machines.engines import RANK_VARIABLES
from shardtune.workers.launchers import parent_death

PYTHON = (sys.executable, *(["-P"] if sys.flags.safe_path else []))
"""Command that starts a Python interpreter for Shardtune's modules. It contains -P if this process was started with -P,
which prevents the import of a folder `workers` in the current directory."""
LAUNCH_TAG = "SHARDTUNE_POOL"
"""Environment variable that holds the launch tag. All processes that work on a set of devices have it, so that they can
be found and killed."""


DYING_S = 3.0
"""Seconds that a killed process without a GPU may take until it has ended."""

_LEAST_S = 10.0
"""Shortest time limit in seconds of the wait until killed processes have ended; a shorter limit is raised to it."""

PRIVATE = (
    "SHARDTUNE_API_KEY",
    "SHARDTUNE_API_KEY_FILE",
    "SHARDTUNE_DATABASE_URL",
    "SHARDTUNE_SECRET_KEY",
    "PGPASSWORD",
)
"""Environment variables with secrets of the service or the worker, which ranks do not get: ranks run other people's
models and scripts."""


_ENGINE_PREFIXES = tuple(prefix for prefixes in RANK_VARIABLES.values() for prefix in prefixes)


def without_secrets(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Copy an environment without the variables that contain secrets."""
    return {name: value for name, value in environment.items() if name not in PRIVATE}


def rank_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables for ranks: those of this process, without secrets and without variables that an engine
    (such as Slurm) set for its own use."""
    return {
        name: value for name, value in without_secrets(environment).items() if not name.startswith(_ENGINE_PREFIXES)
    }


def start_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    isolated: bool = False,
    kept: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process in its own session that dies with this process, even if this process is killed with SIGKILL.

    If `isolated`, the process runs in a PID namespace where the system permits it, so that every process that it starts
    dies with it. Elsewhere, and if `kept`, an intermediate process (the keeper) starts it, and kills the processes that
    it leaves behind.
    """
    # The death signal follows the thread that forks: from another thread, ranks would die when that thread ends.
    assert threading.current_thread() is threading.main_thread(), "start ranks from the main thread"
    wrapper = [
        sys.executable,
        "-I",
        "-S",
        parent_death.__file__,
        *(["--isolated"] if isolated else ["--kept"] if kept else []),
        str(os.getpid()),
    ]
    return subprocess.Popen(
        [*wrapper, *command],
        env=dict(environment),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def tagged_processes(launch_tag: str, proc: Path = Path("/proc")) -> set[int]:
    """Pids of all living processes with the launch tag, except this one. Zombies have no environment and do not count."""
    entry_text = f"{LAUNCH_TAG}={launch_tag}".encode()
    pids = set()
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry_text in (entry / "environ").read_bytes().split(b"\0"):
                pids.add(int(entry.name))
        except OSError:  # ended meanwhile, or another user's
            continue
    return pids - {os.getpid()}


def pool_processes(launch_tag: str) -> set[int]:
    """Pids of all living processes with the launch tag, and of all their descendants, even those without the tag in their
    environment; without this process and its ancestors."""
    tagged = tagged_processes(launch_tag)
    pids = tagged | parent_death.processes_below(tagged)
    return pids - {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}


def kill_tagged(launch_tag: str, keep: Collection[int] = (), dying_s: float = DYING_S) -> set[int]:
    """Kill every process that has the launch tag, and all descendants of such processes, until none is alive. Returns
    the processes that are still alive after `dying_s` seconds, or after ten seconds if `dying_s` is less."""
    # Repeated: a process may fork between the listing and the kill, and freeing GPU memory takes a while.
    ends_s = time.monotonic() + max(_LEAST_S, dying_s)
    while survivors := pool_processes(launch_tag) - set(keep):
        # Keepers last: as long as they live, orphans without the tag stay below them.
        for pid in {pid for pid in survivors if not _is_keeper(pid)} or survivors:
            kill_quietly(pid)
        if time.monotonic() > ends_s:
            return survivors
        time.sleep(0.02)
    return set()


def _is_keeper(pid: int) -> bool:
    try:
        return parent_death.__file__.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile
        return False


def kill_quietly(pid: int) -> None:
    """Send SIGKILL to a process; does nothing if the process has ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
