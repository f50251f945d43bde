"""Back up a database to one file while it is in use."""

import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

from sqlalchemy import URL

from shardtune.db.session import parse_url


def backup(url: str, out: Path) -> int:
    """Write a consistent copy of the database as of one moment; return its size in bytes.

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
    program = shutil.which("pg_dump") or _newest_debian_pg_dump()
    if program is None:
        raise ValueError(
            "pg_dump is not installed; install PostgreSQL's client programs of the server's version or later"
        )
    # The password goes through the environment: process lists show arguments.
    environment = os.environ | ({"PGPASSWORD": str(url.password)} if url.password else {})
    target = url.set(drivername="postgresql", password=None).render_as_string()
    command = [program, "--format=custom", f"--file={out}", f"--dbname={target}", "--no-password"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise ValueError(f"pg_dump ended with exit code {done.returncode}: {' '.join(done.stderr.split())[:500]}")


def _newest_debian_pg_dump() -> str | None:
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_dump"), key=lambda path: int(path.parts[4]))
    return str(programs[-1]) if programs else None
