"""Back up a database to one file while it is in use."""

import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

from sqlalchemy import URL

from shardtune.db.session import parse_url

_SECRET_PARAMETERS = ("password", "sslpassword")
"""Names of those parameters in libpq's URLs that hold secrets."""


def backup(url: str, out: Path) -> int:
    """Write a copy of the database that shows its state at one moment; return the size of the copy in bytes.

    Raises:
        ValueError: the file exists, the database does not, or pg_dump is missing or failed.
    """
    parsed = parse_url(url)
    if out.exists():
        raise ValueError(f"out ({out}) exists; choose a new file, or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    # Under another name until it is whole: half a backup must not look like one.
    part = out.with_name(f"{out.name}.part")
    part.unlink(missing_ok=True)
    # It holds hashes of keys, and the folder may be open to other users.
    part.touch(mode=0o600)
    try:
        if parsed.get_backend_name() == "sqlite":
            _copy_sqlite(Path(parsed.database or ""), part)
        else:
            _dump_postgres(parsed, part)
        part.rename(out)
    finally:
        part.unlink(missing_ok=True)
    return out.stat().st_size


def _copy_sqlite(source: Path, out: Path) -> None:
    if not source.is_file():
        raise ValueError(f"database ({source}) does not exist; give --state-dir or SHARDTUNE_DATABASE_URL")
    origin = sqlite3.connect(source, timeout=30)
    copy = sqlite3.connect(out)
    try:
        # In one step: with several, each write of the service would start the copy anew.
        origin.backup(copy)
    finally:
        copy.close()
        origin.close()


def _dump_postgres(url: URL, out: Path) -> None:
    command = [postgres_program("pg_dump"), "--format=custom", f"--file={out}", *connection_arguments(url)]
    done = subprocess.run(command, capture_output=True, text=True, env=password_environment(url), check=False)
    if done.returncode != 0:
        raise ValueError(f"pg_dump ended with exit code {done.returncode}: {' '.join(done.stderr.split())[:500]}")


def postgres_program(name: str) -> str:
    """Return the path at which one of PostgreSQL's client programs, such as pg_dump, is installed.

    Raises:
        ValueError: the program is not installed.
    """
    debian_programs = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    program = shutil.which(name) or (str(debian_programs[-1]) if debian_programs else None)
    if program is None:
        raise ValueError(
            f"{name} is not installed; install PostgreSQL's client programs of the server's version or later"
        )
    return program


def connection_arguments(url: URL) -> list[str]:
    """Return those arguments of PostgreSQL's client programs that name a database; they contain no password."""
    # `URL.set` keeps a password that it is given as None, and libpq takes one in the query, too.
    query = {name: value for name, value in url.query.items() if name not in _SECRET_PARAMETERS}
    target = url.set(drivername="postgresql", query=query)._replace(password=None).render_as_string()
    return [f"--dbname={target}", "--no-password"]


def password_environment(url: URL) -> dict[str, str]:
    """Return the environment variables of PostgreSQL's client programs. They contain the password, because lists of
    processes do not show them."""
    stated = url.password or url.query.get("password")
    return dict(os.environ) | ({"PGPASSWORD": str(stated)} if stated else {})
