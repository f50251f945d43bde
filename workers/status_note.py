"""What keeps this worker from taking work, as a line in its work directory for whoever started it."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

_FILE = "doing.txt"

log = logging.getLogger(__name__)


@contextlib.contextmanager
def doing(work_dir: Path, words: str) -> Iterator[None]:
    """Say it, in the log as well, for as long as the block runs."""
    log.info("%s", words)
    (work_dir / _FILE).write_text(words)
    try:
        yield
    finally:
        clear(work_dir)


def clear(work_dir: Path) -> None:
    """Nothing keeps it, or a life that was killed meanwhile said so."""
    (work_dir / _FILE).unlink(missing_ok=True)
