"""Keep others out of an Optuna storage while a study is written into it: two writers at once would each add its trials."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy
from filelock import FileLock, Timeout
from optuna.storages._rdb.models import VersionInfoModel

_PATIENCE_S = 60
"""Maximum seconds to wait until another process has finished writing to the Optuna storage; writing one study takes
one or two seconds.
"""
BUSY = f"another command has been writing to it for {_PATIENCE_S} s; repeat the command when that one has ended"


class StorageBusy(RuntimeError):
    """Error: another writer has locked the Optuna storage."""


@contextmanager
def locked_file(url: sqlalchemy.URL) -> Iterator[None]:
    """Lock a SQLite database with Optuna's trials, so that only one thread of one process writes to it. The lock is a
    file beside the database's file; databases on a server are not locked by this function.

    Raises:
        StorageBusy: another writer has had the lock for a minute.
        OSError: the lock file cannot be created.
    """
    file = _file_of(url)
    # Without the folder SQLite fails, too, and says so; the lock would make the folder.
    if file is None or not file.parent.is_dir():
        yield
        return
    # With links resolved: two names of one file have one lock.
    lock = FileLock(file.with_name(f"{file.name}.shardtune.lock"), timeout=_PATIENCE_S)
    try:
        lock.acquire()
    except Timeout:
        raise StorageBusy(BUSY) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked_row(url: sqlalchemy.URL) -> Iterator[None]:
    """Lock the version row of an Optuna storage on a database server, through a separate connection, so that the server
    releases the lock if this process dies. Readers, such as Optuna, do not wait for the lock. SQLite has no such lock,
    and is not locked here.

    Raises:
        sqlalchemy.exc.DBAPIError: another writer has had the lock for a minute, or the server does not answer.
    """
    if url.get_backend_name() == "sqlite":
        yield
        return
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool, hide_parameters=True)
    try:
        with engine.begin() as connection:
            if url.get_backend_name() == "postgresql":
                # By default Postgres waits for ever; MySQL gives up after 50 s.
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_PATIENCE_S}s'")
            connection.execute(sqlalchemy.select(VersionInfoModel.version_info_id).with_for_update()).all()
            yield
    finally:
        engine.dispose()


def _file_of(url: sqlalchemy.URL) -> Path | None:
    """Return the path of a SQLite storage's file, with symbolic links resolved; None for a database on a server."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    return Path(url.database.removeprefix("file:")).resolve()
