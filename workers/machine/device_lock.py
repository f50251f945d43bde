"""Locks that allow only one agent per set of devices on a machine: two agents would distort each other's timings.

A GPU's lock is a name of the kernel's abstract sockets: no file that another user could plant, own or leave behind. It
ends with the process that has it, and the kernel names that process, its user included. Every user can take the name of
a GPU, as every user can occupy the GPU itself: an agent waits for a bounded time, then says who has it.
"""

import contextlib
import hashlib
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from shardtune.api_schemas.access import private_folder
from shardtune.workers.clock import now_s

_LOOK_S = 0.1
_CREDENTIALS = struct.Struct("3i")
"""Format of process id, user id and group id as the kernel returns them (`struct ucred` of unix(7))."""


class DevicesBusy(Exception):
    """Exception for a device that another agent has locked."""


def launch_tag(work_dir: Path, gpu_uuids: Sequence[str]) -> str:
    """Name of a set of devices, equal for every agent that could lock the same devices. All processes that use the
    devices have it as launch tag."""
    identity = ",".join(sorted(gpu_uuids)) if gpu_uuids else str(work_dir.resolve())
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


@contextlib.contextmanager
def hold_locks(work_dir: Path, gpu_uuids: Sequence[str], patience_s: float = 0.0) -> Iterator[None]:
    """Context in which the devices are locked. A GPU has one lock for all users of the machine; CPU ranks have one lock
    per work directory.

    `patience_s`: seconds that the previous user of the devices may take to end, such as a node agent whose agent has
    died.

    Raises:
        DevicesBusy: another process holds one of the devices.
        ValueError: another user owns the work directory or can write it.
    """
    until_s = now_s() + patience_s
    with contextlib.ExitStack() as stack:
        if not gpu_uuids:
            stack.enter_context(_work_dir_lock(private_folder.make(work_dir, "work_dir"), patience_s))
        # Always in the same order, so that two agents with overlapping sets cannot each hold half.
        for uuid in sorted(gpu_uuids):
            stack.enter_context(_gpu_lock(uuid, until_s))
        yield


@contextlib.contextmanager
def _work_dir_lock(work_dir: Path, patience_s: float) -> Iterator[None]:
    path = work_dir / "agent.lock"
    try:
        with FileLock(path, timeout=patience_s):
            yield
    except Timeout:
        raise DevicesBusy(
            f"work_dir ({work_dir}) is in use by another Shardtune agent on this machine (lock {path}); "
            "stop that agent, or give this one another --work-dir"
        ) from None


@contextlib.contextmanager
def _gpu_lock(uuid: str, until_s: float) -> Iterator[None]:
    address = f"\0shardtune/{uuid}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        while not _is_bound(lock, address):
            if now_s() >= until_s:
                raise DevicesBusy(
                    f"GPU {uuid} is in use by another Shardtune agent on this machine ({_holder(address)}); "
                    "stop that agent, or give this one other GPUs (CUDA_VISIBLE_DEVICES)"
                )
            time.sleep(_LOOK_S)
        # Whoever connects learns this process's id and user from the kernel; nobody is ever accepted.
        lock.listen()
        yield


def _is_bound(lock: socket.socket, address: str) -> bool:
    try:
        lock.bind(address)
    except OSError:
        return False
    return True


def _holder(address: str) -> str:
    """Describe the process that holds a lock. The kernel knows it as the process that listens on the lock's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as question:
        question.setblocking(False)
        try:
            question.connect(address)
            pid, uid, _ = _CREDENTIALS.unpack(
                question.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
        except OSError as error:
            return f"its process is unknown: {os.strerror(error.errno or 0)}; `ss -xlp` lists {address[1:]}"
    return f"process {pid} of uid {uid}{'' if uid == os.geteuid() else ', another user'}"
