"""Start processes that die with this one, find every process of a device pool, and end them all.

Processes are found by an environment variable that all descendants inherit, whatever process group or parent they
end up with; nothing is ever killed by its name.
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

from shardtune.workers.launchers import parent_death

PYTHON = (sys.executable, *(["-P"] if sys.flags.safe_path else []))
"""The interpreter for our own modules. -P is passed on: with it a folder `workers` where we were started is not ours."""
MARK = "SHARDTUNE_POOL"
"""Environment variable that holds the mark of the device pool a process works on."""


DYING_S = 3.0
"""How long a killed process without a GPU may take to be gone."""

_LEAST_S = 10.0

PRIVATE = (
    "SHARDTUNE_API_KEY",
    "SHARDTUNE_API_KEY_FILE",
    "SHARDTUNE_DATABASE_URL",
    "SHARDTUNE_SECRET_KEY",
    "PGPASSWORD",
)
"""What ranks are not told, where the worker runs beside the service: they run other people's models and scripts."""


ENGINES = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "RAY_")
"""How variables begin by which training libraries take a rank for a task of an engine's, and read its place from them."""


def without_secrets(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Our environment but for secrets."""
    return {name: value for name, value in given.items() if name not in PRIVATE}


def rank_environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for ranks: neither secrets nor an engine's words."""
    return {name: value for name, value in without_secrets(given).items() if not name.startswith(ENGINES)}


def start_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    isolated: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process, in a session of its own, that dies with this one (also by kill -9).

    `isolated`: in a PID namespace where permitted, so that whatever it starts dies with it.
    """
    # The death signal follows the thread that forks: from another thread, ranks would die when that thread ends.
    assert threading.current_thread() is threading.main_thread(), "start ranks from the main thread"
    wrapper = [
        sys.executable,
        "-I",
        "-S",
        parent_death.__file__,
        *(["--isolated"] if isolated else []),
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


def marked(mark: str, proc: Path = Path("/proc")) -> set[int]:
    """Ids of all living processes that carry the mark, but this one. Zombies have no environment and do not count."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
        except OSError:  # ended meanwhile, or another user's
            continue
    return found - {os.getpid()}


def kill_marked(mark: str, keep: Collection[int] = (), dying_s: float = DYING_S) -> set[int]:
    """SIGKILL everything that carries the mark until nothing of it lives; returns what did after `dying_s`, or ten seconds.

    Repeated, because a process may fork between the look and the kill, and because one that frees GPU memory
    takes a while to go.
    """
    ends_s = time.monotonic() + max(_LEAST_S, dying_s)
    while left := marked(mark) - set(keep):
        for pid in left:
            kill_quietly(pid)
        if time.monotonic() > ends_s:
            return left
        time.sleep(0.02)
    return set()


def kill_quietly(pid: int) -> None:
    """SIGKILL a process that may be gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
