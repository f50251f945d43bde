"""A test's copy of a database holds what was written last, whether or not a connection is still open."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.tools.sqlite_copies import copy


def names_in(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [name for (name,) in database.execute("select name from tests")]


def test_what_is_in_the_log_alone_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "source.sqlite3"
    with closing(sqlite3.connect(source)) as held:
        held.execute("pragma journal_mode = wal")
        held.execute("create table tests (name text)")
        held.execute("insert into tests values ('newest')")
        held.commit()
        copy(source, tmp_path / "open.sqlite3")
    copy(source, tmp_path / "closed.sqlite3")
    assert names_in(tmp_path / "open.sqlite3") == names_in(tmp_path / "closed.sqlite3") == ["newest"]
