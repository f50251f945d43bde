"""Status note: the reason why this worker takes no work, as a line in its work directory for the process that started it."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

_FILE = "doing.txt"

log = logging.getLogger(__name__)


@contextlib.contextmanager
def doing(work_dir: Path, status: str) -> Iterator[None]:
    """Context in which a file in the work directory, the status note, says why the worker takes no runs. The reason is
    also logged."""
    log.info("%s", status)
    try:
        (work_dir / _FILE).write_text(status)
    except OSError as error:
        # Such as a full disk: the note serves people, and the log has it.
        log.warning("the status note could not be written: %s", error)
    try:
        yield
    finally:
        clear(work_dir)


def clear(work_dir: Path) -> None:
    """Remove the status note (the file that says why a worker takes no runs) from the work directory, for example one
    that a killed agent left behind."""
    (work_dir / _FILE).unlink(missing_ok=True)
