"""Files of a SQLite database: who can read them, and how they are written on which file system."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from shardtune.db import sqlite_files
from shardtune.db.session import Database, make_engine, upgrade

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:31 / /home rw,relatime shared:2 - nfs4 server:/home rw
24 23 254:1 / /home/local\040disk rw shared:3 - xfs /dev/vdb rw
25 22 0:40 / /mnt rw - tmpfs none rw
26 22 0:41 / /mnt rw - fuse.sshfs host: rw
a line of another kind
"""


@pytest.fixture
def permissive_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("permissive_umask")
def test_a_new_database_and_its_journals_are_readable_by_their_user_only(tmp_path):
    upgrade(f"sqlite:///{tmp_path}/new.sqlite3")
    database = Database(f"sqlite:///{tmp_path}/new.sqlite3")
    with database.write() as session:
        session.execute(text("DELETE FROM events"))
        files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    database.close()
    assert files == dict.fromkeys(("new.sqlite3", "new.sqlite3-wal", "new.sqlite3-shm"), 0o600)


def test_permissions_that_an_operator_gave_a_database_stay(tmp_path):
    path = tmp_path / "shared.sqlite3"
    upgrade(f"sqlite:///{path}")
    path.chmod(0o640)
    upgrade(f"sqlite:///{path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_another_connection_leaves_the_locks_of_the_first(tmp_path):
    """Without its lock, another process that closes the database takes the service's journal for a dead one's."""
    path = tmp_path / "used.sqlite3"
    upgrade(f"sqlite:///{path}")
    database = Database(f"sqlite:///{path}")
    with database.engine.connect() as first, database.engine.connect() as second:
        for connection in (first, second):
            connection.execute(text("SELECT count(*) FROM events"))
            connection.rollback()
        script = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) FROM events'); c.close()"
        )
        subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)
        assert path.with_name("used.sqlite3-wal").exists()
    database.close()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/lib/shardtune.sqlite3", "ext4"),
        ("/homes/shardtune.sqlite3", "ext4"),
        ("/home/ada/.shardtune/shardtune.sqlite3", "nfs4"),
        ("/home/local disk/shardtune.sqlite3", "xfs"),
        ("/mnt/shardtune.sqlite3", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_nearest_mount(tmp_path, path, expected):
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    assert sqlite_files.file_system(Path(path), table) == expected


def test_wal_is_not_used_on_a_network_file_system_and_the_log_says_the_remedy(tmp_path, caplog):
    table = tmp_path / "mounts"
    table.write_text("22 1 0:31 / / rw shared:1 - nfs4 server:/ rw\n")
    path = tmp_path / "remote.sqlite3"
    for _ in range(2):
        engine = make_engine(f"sqlite:///{path}", mounts=table)
        with engine.connect() as connection:
            assert connection.scalar(text("PRAGMA journal_mode")) == "truncate"
            assert connection.scalar(text("PRAGMA synchronous")) == 2
        engine.dispose()
    (record,) = caplog.records
    assert "network file system (nfs4)" in record.getMessage() and "or use Postgres" in record.getMessage()


def test_a_database_that_was_written_with_wal_opens_without_it_and_keeps_its_rows(tmp_path):
    table = tmp_path / "mounts"
    table.write_text("22 1 0:31 / / rw shared:1 - lustre server:/ rw\n")
    url = f"sqlite:///{tmp_path}/moved.sqlite3"
    upgrade(url)
    engine = make_engine(url, mounts=table)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM projects")) == 1
        assert connection.scalar(text("PRAGMA journal_mode")) == "truncate"
    engine.dispose()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "overlay", "tmpfs", "btrfs", "zfs", "fuse.fuse-overlayfs"])
def test_wal_is_used_on_a_local_file_system(tmp_path, kind):
    table = tmp_path / "mounts"
    table.write_text(f"22 1 0:31 / / rw shared:1 - {kind} none rw\n")
    assert sqlite_files.journal_of(tmp_path / "local.sqlite3", table).mode == "WAL"
