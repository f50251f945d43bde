"""Process 1 of a host: `init.py NAME FOLDER [VISIBLE…]`, inside new namespaces; makes the host's own places, then reaps.

`VISIBLE`: folders under /tmp that the host sees although its /tmp is its own.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

TMP = Path("/tmp")
QUIET = "stat"
"""Copy of /proc/stat in the folder of a quiet laboratory: counters that stand still show no load of other programs."""


def main() -> None:
    """Mount, take the name, say our number as the machine sees it, reap for ever."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    # Before /proc is the host's own, it tells the machine's number for us.
    number = Path("/proc/self").readlink()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    _own_tmp(folder / f"{name}.tmp", [Path(item) for item in sys.argv[3:]])
    _mount("-t", "tmpfs", "tmpfs", "/dev/shm")
    _mount("--bind", str(folder / "hosts"), "/etc/hosts")
    _mount("-t", "proc", "proc", "/proc")
    if (folder / QUIET).exists():
        _mount("--bind", str(folder / QUIET), "/proc/stat")
    socket.sethostname(name)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    beside = folder / f"{name}.starting"
    beside.write_text(str(number))
    beside.rename(folder / f"{name}.pid")
    while signal.sigwait({signal.SIGCHLD}):
        _reap()


def _own_tmp(place: Path, visible: list[Path]) -> None:
    """Put an empty file system where /tmp is, with the visible folders at their places in it."""
    place.mkdir(exist_ok=True)
    _mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(place))
    for folder in visible:
        target = place / folder.relative_to(TMP)
        target.mkdir(parents=True, exist_ok=True)
        _mount("--bind", str(folder), str(target))
    _mount("--rbind", str(place), str(TMP))


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    main()
