"""Locks that allow only one agent per set of devices on a machine: two agents would distort each other's timings."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from shardtune.workers.clock import now_s


class DevicesBusy(Exception):
    """Another agent has locked one of the devices."""


def launch_tag(work_dir: Path, gpu_uuids: Sequence[str]) -> str:
    """Name of a device set, equal for every agent that could lock the same devices; all processes on the devices are
    tagged with it."""
    identity = ",".join(sorted(gpu_uuids)) if gpu_uuids else str(work_dir.resolve())
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


@contextlib.contextmanager
def hold_locks(
    work_dir: Path, gpu_uuids: Sequence[str], locks_dir: Path | None = None, patience_s: float = 0.0
) -> Iterator[None]:
    """Context in which the devices are locked: one lock per GPU, machine-wide; for CPU ranks one lock per work
    directory.

    `patience_s` is how long the previous user of the devices may take to end, such as a node agent whose agent has
    died.

    Raises:
        DevicesBusy: another process holds one of them.
    """
    until_s = now_s() + patience_s
    with contextlib.ExitStack() as stack:
        for device_name, path in _lock_paths(work_dir, gpu_uuids, locks_dir):
            try:
                stack.enter_context(FileLock(path, timeout=max(0.0, until_s - now_s()), mode=0o666))
            except Timeout:
                raise DevicesBusy(
                    f"{device_name} is in use by another Shardtune agent on this machine (lock {path}); "
                    "stop that agent, or give this one other devices or another --work-dir"
                ) from None
        yield


def _lock_paths(work_dir: Path, gpu_uuids: Sequence[str], locks_dir: Path | None) -> list[tuple[str, Path]]:
    if not gpu_uuids:
        work_dir.mkdir(parents=True, exist_ok=True)
        return [(f"work_dir ({work_dir})", work_dir / "agent.lock")]
    folder = locks_dir or Path(tempfile.gettempdir()) / "shardtune-locks"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):
        # Agents of several users lock in this folder.
        os.chmod(folder, 0o1777)  # noqa: PTH101  # nosec B103 # as /tmp; only locks are in it
    # Always in the same order, so that two agents with overlapping sets cannot each hold half.
    return [(f"GPU {uuid}", folder / f"{uuid}.lock") for uuid in sorted(gpu_uuids)]
