"""Replace the contents of a database by a backup, without bringing revoked API keys back."""

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, delete, inspect, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from shardtune.db.backup import backup, connection_arguments, password_environment, postgres_program
from shardtune.db.revisions import unknown_revision_problem
from shardtune.db.session import make_engine, parse_url, upgrade
from shardtune.db.tables.access import ApiKeyRow, PageSessionRow

_ERASE = "DROP SCHEMA public CASCADE;\nCREATE SCHEMA public;\n"
_CLOSING_S = 5.0
"""Maximum number of seconds that Postgres takes to end its own process for a connection that was closed."""


@dataclass(frozen=True)
class Restored:
    """Outcome of a restore."""

    former: Path | None
    """Path of the backup that was made of the former contents before they were replaced; None if the database was
    empty."""
    revoked_again: tuple[str, ...]
    """Names of API keys that were revoked after the backup was made. The backup holds them as valid; the restore
    revoked them again."""
    valid_keys: tuple[str, ...]
    """Names of the API keys that are valid after the restore."""


def restore(url: str, source: Path, former: Path) -> Restored:
    """Replace everything in the database by a backup, in one transaction, and migrate the result to this version.

    The former contents are backed up to `former` first. API keys that were revoked in them are revoked in the
    restored database, too, and all browser sessions end.

    Raises:
        ValueError: the backup is missing or unreadable, it belongs to an unknown version, or the database is in use.
    """
    parsed = parse_url(url)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    if not source.is_file():
        raise ValueError(f"backup ({source}) is no file; name the file that `shardtune db backup` wrote")
    # Read completely before anything changes: a damaged backup must leave the database as it is.
    sql = b"" if is_sqlite else _dumped_sql(source)
    if is_sqlite:
        _check_sqlite_backup(source)
    revoked: dict[str, datetime] = {}
    if is_sqlite and _is_damaged(Path(parsed.database or "")):
        revoked = _readable_revocations(url)
        _move_aside(Path(parsed.database or ""), former)
    engine = make_engine(url)
    try:
        has_contents = _has_contents(engine, parsed)
        revoked |= _revoked_keys(engine) if has_contents else {}
        if has_contents:
            backup(url, former)
        if is_sqlite:
            _copy_into_sqlite(source, Path(parsed.database or ""))
        else:
            _reject_other_connections(engine)
            engine.dispose()
            _load_postgres(parsed, sql)
        upgrade(url)
        with engine.begin() as connection:
            revoked_again = _revoke_again(connection, revoked)
            connection.execute(delete(PageSessionRow))
            valid = connection.scalars(select(ApiKeyRow.name).where(ApiKeyRow.revoked_at.is_(None)))
            return Restored(former if former.exists() else None, revoked_again, tuple(sorted(valid)))
    finally:
        engine.dispose()


def _is_damaged(database: Path) -> bool:
    """Whether a SQLite file exists that SQLite cannot read."""
    if not database.exists():
        return False
    connection = sqlite3.connect(database)
    try:
        return bool(connection.execute("PRAGMA quick_check").fetchone() != ("ok",))
    except sqlite3.DatabaseError:
        return True
    finally:
        connection.close()


def _readable_revocations(url: str) -> dict[str, datetime]:
    """Return the API keys that a damaged SQLite file says are revoked, as far as it can be read."""
    engine = make_engine(url)
    try:
        return _revoked_keys(engine)
    except SQLAlchemyError:
        return {}
    finally:
        engine.dispose()


def _move_aside(database: Path, former: Path) -> None:
    """Move a damaged SQLite file to another path, with the log files that belong to it."""
    for suffix in ("", "-wal", "-shm"):
        part = database.with_name(database.name + suffix)
        if part.exists():
            # Not a rename: the backup may be on another filesystem.
            shutil.move(part, former.with_name(former.name + suffix))


def _has_contents(engine: Engine, url: URL) -> bool:
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        return False
    return bool(inspect(engine).get_table_names())


def _revoked_keys(engine: Engine) -> dict[str, datetime]:
    """Return the time at which each revoked API key was revoked, by the key's hash; empty if the database has no
    table of keys."""
    if not inspect(engine).has_table(ApiKeyRow.__tablename__):
        return {}
    with engine.connect() as connection:
        rows = connection.execute(
            select(ApiKeyRow.secret_sha256, ApiKeyRow.revoked_at).where(ApiKeyRow.revoked_at.is_not(None))
        )
        return {secret: revoked_at for secret, revoked_at in rows if revoked_at is not None}


def _revoke_again(connection: Connection, revoked: dict[str, datetime]) -> tuple[str, ...]:
    """Revoke those of the given API keys that the restored database holds as valid; return their names."""
    names = []
    valid = connection.execute(
        select(ApiKeyRow.id, ApiKeyRow.name, ApiKeyRow.secret_sha256).where(ApiKeyRow.revoked_at.is_(None))
    )
    for key_id, name, secret in valid.all():
        if secret in revoked:
            connection.execute(update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(revoked_at=revoked[secret]))
            names.append(name)
    return tuple(sorted(names))


def _check_sqlite_backup(source: Path) -> None:
    """Check that a backup is an undamaged SQLite database whose schema revision this code knows."""
    copy = sqlite3.connect(_read_only(source), uri=True)
    try:
        (verdict,) = copy.execute("PRAGMA integrity_check").fetchone()
        tables = {name for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as error:
        raise ValueError(f"backup ({source}) is no SQLite backup: {error}; name a file of `db backup`") from None
    finally:
        copy.close()
    if verdict != "ok" or "alembic_version" not in tables:
        reason = "it is damaged" if verdict != "ok" else "it holds no Shardtune database"
        raise ValueError(f"backup ({source}) cannot be restored: {reason}; name another file of `db backup`")
    # Without the settings of `make_engine`, which write to the file.
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(_read_only(source), uri=True))
    try:
        with engine.connect() as connection:
            problem = unknown_revision_problem(connection, f"backup ({source})")
    finally:
        engine.dispose()
    if problem is not None:
        raise ValueError(problem)


def _read_only(path: Path) -> str:
    """Return the SQLite URI that opens a file read-only, so that SQLite writes no -wal or -shm file beside it."""
    return f"{path.resolve().as_uri()}?mode=ro&immutable=1"


def _copy_into_sqlite(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    origin, database = sqlite3.connect(_read_only(source), uri=True), sqlite3.connect(target, timeout=5)
    try:
        # One step is one transaction of the target: a crash leaves the former contents.
        origin.backup(database)
    except sqlite3.OperationalError as error:
        raise ValueError(f"database ({target}) is in use ({error}); stop the service, then try again") from None
    finally:
        database.close()
        origin.close()


def _dumped_sql(source: Path) -> bytes:
    """Return the SQL statements that a dump made by pg_dump contains."""
    command = [postgres_program("pg_restore"), "--file=-", "--no-owner", "--no-privileges", str(source)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"backup ({source}) cannot be read by pg_restore: {_short(done.stderr)}")
    return done.stdout


def _reject_other_connections(engine: Engine) -> None:
    """Reject a database to which other programs are connected, because they would continue with rows that no longer
    exist."""
    # Postgres lists a closed connection until its process has ended, which takes a moment.
    deadline = time.monotonic() + _CLOSING_S
    while count := _count_other_connections(engine):
        if time.monotonic() > deadline:
            raise ValueError(
                f"database ({engine.url.database}) has {count} other connection{'s' * (count > 1)}; "
                "stop the service's replicas"
            )
        time.sleep(0.1)


def _count_other_connections(engine: Engine) -> int:
    others = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    with engine.connect() as connection:
        return int(connection.scalar(others) or 0)


def _load_postgres(url: URL, sql: bytes) -> None:
    """Replace everything in the database's schema by the contents of a dump, in one transaction."""
    options: Sequence[str] = ("--single-transaction", "--set=ON_ERROR_STOP=1", "--quiet", "--no-psqlrc")
    command = [postgres_program("psql"), *options, *connection_arguments(url)]
    done = subprocess.run(
        command, input=_ERASE.encode() + sql, capture_output=True, env=password_environment(url), check=False
    )
    if done.returncode != 0:
        raise ValueError(f"psql ended with exit code {done.returncode}, and changed nothing: {_short(done.stderr)}")


def _short(output: bytes) -> str:
    return " ".join(output.decode(errors="replace").split())[:500]
