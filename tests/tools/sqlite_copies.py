"""Copies of SQLite databases for tests."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path


def copy(source: Path, target: Path) -> None:
    """Copy a database, also one to which a service that has just ended still holds a connection."""
    if not Path(f"{source}-wal").exists():
        shutil.copy(source, target)
        return
    # What was written last is in the write-ahead log alone until the last connection closes.
    with closing(sqlite3.connect(source)) as whole, closing(sqlite3.connect(target)) as new:
        whole.backup(new)
