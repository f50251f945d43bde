"""Status note: the reason why this worker takes no work, as a line in its work directory for the process that started it."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

_FILE = "doing.txt"

log = logging.getLogger(__name__)


@contextlib.contextmanager
def doing(work_dir: Path, status: str) -> Iterator[None]:
    """Write the note, and log it, for as long as the context is open."""
    log.info("%s", status)
    (work_dir / _FILE).write_text(status)
    try:
        yield
    finally:
        clear(work_dir)


def clear(work_dir: Path) -> None:
    """Remove the note, such as that of an agent that was killed."""
    (work_dir / _FILE).unlink(missing_ok=True)
