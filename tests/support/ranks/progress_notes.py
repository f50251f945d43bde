"""Operation of a rank that takes as long as a few notes of its progress."""

import contextlib
import time
from pathlib import Path
from typing import NoReturn


class NotedInTime(Exception):
    """The progress file was renewed during the operation."""


def end_after_notes(folder: Path) -> NoReturn:
    """Take as long as three notes of progress do, then end what follows."""
    stamps, until_s = set[int](), time.monotonic() + 10
    while len(stamps) < 3:
        assert time.monotonic() < until_s, "no note of progress"
        with contextlib.suppress(FileNotFoundError):
            stamps.add((folder / "progress.json").stat().st_mtime_ns)
        time.sleep(0.005)
    raise NotedInTime
