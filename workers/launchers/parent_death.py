"""Wrapper script that becomes a program which the kernel kills when its parent dies.

`parent_death.py [--isolated | --kept] PARENT_PID PROGRAM [ARGUMENT…]`

It is a script because Popen's `preexec_fn` is unsafe in a process with threads. The kernel keeps the death signal over exec
and ties it to the parent *thread*, so start this from a thread that lives as long as the ranks may.

With `--isolated` the program is process 1 of its own PID namespace where that is permitted: when it dies, the kernel kills
every process that it and its children started, under whatever session, parent or environment. SHARDTUNE_ISOLATION tells the
program whether it is isolated.

With `--kept`, and where a PID namespace is not permitted, the script stays between parent and program as a keeper: every
orphan below it becomes its child, and it ends all of them when the program or the parent ends. Ranks that are started one
by one share a namespace with their agent, since CUDA exchanges memory handles only between processes that see each other.
SIGUSR1 asks a keeper to end everything at once; it passes SIGTERM, SIGINT and SIGHUP on to the program.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

PARENT = "SHARDTUNE_PARENT_PID"
"""Environment variable with the parent's pid, by which a rank checks that its parent is still alive. An inherited value
is replaced."""
ISOLATION = "SHARDTUNE_ISOLATION"
"""Environment variable that says whether this process runs in a PID namespace of its own: `pid_namespace`, or the
reason why there is none."""
PID_NAMESPACE = "pid_namespace"
DYING_S = 10.0
"""Seconds for which a keeper (the parent process of a rank) goes on killing processes that its program left behind.
Processes that free GPU memory take a while to end."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 1 << 14, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Ask the kernel to kill this process when its parent ends, check that the parent is still alive, and replace this
    process by the program."""
    arguments = sys.argv[1:]
    mode = arguments.pop(0) if arguments[0].startswith("--") else None
    parent, command = int(arguments[0]), arguments[1:]
    _die_with_parent()
    # A parent that died before the call above sends nothing any more.
    if os.getppid() != parent:
        sys.exit(f"parent {parent} died before {command[0]} could start")
    os.environ[PARENT] = str(parent)
    if mode == "--isolated":
        rejection = why_not_isolated()
        os.environ[ISOLATION] = rejection or PID_NAMESPACE
        if rejection is None:
            _run_in_namespace(command)
    if mode is not None:
        _run_under_keeper(command, parent)
    os.execvp(command[0], command)


def why_not_isolated() -> str | None:
    """Reason why PID namespaces cannot be used; None if they can."""
    # Tried in a child: a process that has entered a namespace cannot leave it.
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _enter_namespaces()
            child = os.fork()
            if child == 0:
                _mount_proc()
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                raise OSError("/proc cannot be mounted")
        except OSError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    reason = os.read(read, 1000).decode()
    os.close(read)
    os.waitpid(pid, 0)
    return reason or None


def _run_in_namespace(command: list[str]) -> None:
    """Run the program as process 1 of a new PID namespace, and exit with the program's exit code. Does not return."""
    _enter_namespaces()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        _die_with_parent()
        # In the new namespace the parent has no pid: it lives as long as its end of the pipe is open.
        if select.select([read], [], [], 0)[0]:
            os._exit(1)
        os.close(read)
        # 0 turns the rank's own comparison off; the parent was checked above.
        os.environ[PARENT] = "0"
        _mount_proc()
        os.execvp(command[0], command)
    _close_streams()
    _exit_as(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _run_under_keeper(command: list[str], parent: int) -> None:
    """Run the program as a child of this process. When the program ends, or the parent of this process does, end all
    remaining descendants. Does not return."""
    watched = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    _require_success(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _die_with_parent()
        if os.getppid() != keeper:
            os._exit(1)
        os.environ[PARENT] = str(keeper)
        os.execvp(command[0], command)
    # SIGKILL would leave no time to end the orphans; until here it took the program along.
    _die_with_parent(signal.SIGTERM)
    _close_streams()
    code = None
    while code is None and os.getppid() == parent:
        if (number := signal.sigwait(watched)) == signal.SIGCHLD:
            code = _reap(pid)
        elif number == signal.SIGUSR1:
            break
        elif os.getppid() == parent:
            os.kill(pid, number)
    kill_below([keeper], DYING_S)
    _reap(pid)
    _exit_as(1 if code is None else code)


def _reap(program: int) -> int | None:
    """Collect the exit codes of all children that have ended; returns the program's exit code if it is one of them."""
    code = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == program:
                code = os.waitstatus_to_exitcode(ended[1])
    except ChildProcessError:
        pass
    return code


def _close_streams() -> None:
    """Close the copies of the program's input and output that this process (the keeper, which waits for the program)
    has, so that the other end notices when the program closes them."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)


def _exit_as(code: int) -> NoReturn:
    """End this process as the program ended: with the same exit code, or by the same signal if the code is negative."""
    if code < 0:
        # The program has left its core dump already.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code)


def processes_below(roots: Iterable[int]) -> set[int]:
    """Pids of all living processes that descend from the given processes, without these themselves and without
    zombies."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, (entry.name for entry in Path("/proc").iterdir())):
        try:
            state, parent = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):  # ended meanwhile
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
    above = set(roots)
    below: set[int] = set()
    pending = list(above)
    while pending:
        pending = [pid for parent in pending for pid in children.get(parent, ()) if pid not in below]
        below.update(pending)
    return below - above


def kill_below(roots: Iterable[int], within_s: float) -> None:
    """Kill all processes that descend from the given ones, until none is alive or the given seconds are over."""
    # Repeated: a process may fork between the listing and the kill.
    ends_s = time.monotonic() + within_s
    while (below := processes_below(roots)) and time.monotonic() < ends_s:
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # ended meanwhile, or another user's
                continue
        time.sleep(0.02)


def _enter_namespaces() -> None:
    """Enter new PID and mount namespaces for child processes. A process that is not root also enters a user namespace,
    which permits this."""
    user, group = os.getuid(), os.getgid()
    _require_success(_libc.unshare(_CLONE_NEWPID | _CLONE_NEWNS | (_CLONE_NEWUSER if user else 0)), "unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        # The change of credentials cleared the death signal and `dumpable`, without which the agent could not read the
        # environment by which it finds its processes.
        _require_success(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")
        parent = os.getppid()
        _die_with_parent()
        if os.getppid() != parent:
            os._exit(1)


def _mount_proc() -> None:
    """Mount /proc again so that it shows the pids of the new namespace. psutil and other libraries compare these with
    their own pids."""
    _require_success(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount --make-rprivate /")
    _require_success(_libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None), "mount /proc")


def _die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    _require_success(_libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def _require_success(result: int, call: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
