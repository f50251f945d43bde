"""A disk that takes only so many bytes a second: ext4 on a loop device, held back by the kernel (cgroup v1, blkio). Needs root.

It is mounted, so run this within a mount namespace of its own (`unshare -m`).
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_BLKIO = Path("/sys/fs/cgroup/blkio")
_IMAGE_BYTES = 4 << 30
"""Sparse: only what is written takes room."""


@dataclass(frozen=True)
class ThrottledDisk:
    """A mounted disk, and the group of processes that it holds back: this one and those that it starts."""

    folder: Path
    _limit: Path
    _device: str

    def hold_back(self, bytes_per_s: int) -> None:
        """Let all processes of the group together write so much; 0: as much as the disk takes."""
        self._limit.write_text(f"{self._device} {bytes_per_s}")


@contextmanager
def throttled_disk(image_folder: Path) -> Iterator[ThrottledDisk]:
    """Make it of a file in this folder, and remove it. Writes reach the device with `fsync` or `O_DIRECT`, as a checkpoint's do."""
    with tempfile.TemporaryDirectory(prefix="disk-", dir=image_folder) as name:
        image, folder, group = Path(name) / "image", Path(name) / "mounted", _BLKIO / f"disk-{os.getpid()}"
        with image.open("wb") as file:
            file.truncate(_IMAGE_BYTES)
        folder.mkdir()
        _run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(image))
        loop = _run("losetup", "-f", "--show", "--direct-io=on", str(image)).strip()
        group.mkdir()
        before = _joined(group)
        try:
            _run("mount", loop, str(folder))
            number = Path("/sys/block", Path(loop).name, "dev").read_text().strip()
            yield ThrottledDisk(folder, group / "blkio.throttle.write_bps_device", number)
        finally:
            (before / "cgroup.procs").write_text(str(os.getpid()))
            subprocess.run(["umount", "-l", str(folder)], check=False)
            subprocess.run(["losetup", "-d", loop], check=False)
            group.rmdir()


def _joined(group: Path) -> Path:
    """Enter the group; the one that this process was in."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next(path for _, names, path in (line.split(":", 2) for line in lines) if names == "blkio")
    (group / "cgroup.procs").write_text(str(os.getpid()))
    return _BLKIO / own.lstrip("/")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
