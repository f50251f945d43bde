"""Wrapper script that becomes a program which the kernel kills when its parent dies.

`parent_death.py [--isolated] PARENT_PID PROGRAM [ARGUMENT…]`

It is a script because Popen's `preexec_fn` is unsafe in a process with threads. The kernel keeps the death signal over exec
and ties it to the parent *thread*, so start this from a thread that lives as long as the ranks may.

With `--isolated` the program is process 1 of its own PID namespace where that is permitted: when it dies, the kernel kills
every process that it and its children started, under whatever session, parent or environment. SHARDTUNE_ISOLATION tells the
program whether it is isolated.
"""

import ctypes
import os
import select
import signal
import sys
from pathlib import Path

PARENT = "SHARDTUNE_PARENT_PID"
"""Environment variable with the parent's pid, which ranks compare with their parent; an inherited value is replaced."""
ISOLATION = "SHARDTUNE_ISOLATION"
"""Environment variable with the value `pid_namespace`, or with the reason why there is no PID namespace."""
PID_NAMESPACE = "pid_namespace"

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 1 << 14, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Set the parent-death signal, check that the parent is still alive, and exec the program."""
    arguments = sys.argv[1:]
    isolated = arguments[0] == "--isolated"
    parent, command = int(arguments[isolated]), arguments[isolated + 1 :]
    _die_with_parent()
    # A parent that died before the call above sends nothing any more.
    if os.getppid() != parent:
        sys.exit(f"parent {parent} died before {command[0]} could start")
    os.environ[PARENT] = str(parent)
    if isolated:
        rejection = why_not_isolated()
        os.environ[ISOLATION] = rejection or PID_NAMESPACE
        if rejection is None:
            _run_in_namespace(command)
    os.execvp(command[0], command)


def why_not_isolated() -> str | None:
    """Reason why PID namespaces cannot be used; None where they can."""
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
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _enter_namespaces() -> None:
    """Enter new PID and mount namespaces for child processes; without root, a user namespace that permits this."""
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
    """Mount /proc with the pids of the new namespace, which psutil and other libraries compare with their own pids."""
    _require_success(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount --make-rprivate /")
    _require_success(_libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None), "mount /proc")


def _die_with_parent() -> None:
    _require_success(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def _require_success(result: int, call: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
