"""Measurement of a disk's rate for one process: a file is written, forced to the disk, and read back past the kernel's
cache."""

import os
import time
from pathlib import Path

from shardtune.api_schemas.trials.rank_reports import DiskRate

_PIECE = 4 << 20
"""Number of bytes that are written before each fsync."""
_PIECES = 16
_MOST_S = 2.0
"""Seconds after which the measurement of the disk stops writing. A disk of 5 MB/s then still writes two pieces, which
is enough."""


def disk_rate(folder: Path) -> DiskRate:
    """Measure the rates at which the disk under a folder writes and reads. The disk needs 64 MiB of free space; most
    disks take a few tenths of a second."""
    path, piece = folder / "disk-rate.bin", os.urandom(_PIECE)
    try:
        with path.open("wb", buffering=0) as file:
            begin, written = time.perf_counter(), 0
            for _ in range(_PIECES):
                written += file.write(piece)
                os.fsync(file.fileno())
                if time.perf_counter() - begin > _MOST_S:
                    break
            write_s = time.perf_counter() - begin
            # The read below must come from the disk, not from the pages just written.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with path.open("rb", buffering=0) as file:
            begin = time.perf_counter()
            while file.read(_PIECE):
                pass
            read_s = time.perf_counter() - begin
    finally:
        path.unlink(missing_ok=True)
    return DiskRate(write_bytes_per_s=written / max(write_s, 1e-9), read_bytes_per_s=written / max(read_s, 1e-9))


def written_bytes() -> int | None:
    """Bytes that this process has written to disks so far (`write_bytes` of proc(5)); None if the kernel does not
    report it."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split(":")[1]) for line in lines if line.startswith("write_bytes:")), None)
