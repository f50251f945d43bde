"""A PostgreSQL server of our own, on a Unix socket in a folder of its own; for tests, the soak and the benchmarks.

It dies with the process that started it, however that ends.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO, Self

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

_START_S = 120.0


class PostgresServer:
    """Runs while the `with` block does; can be crashed and started again."""

    def __init__(self, fsync: bool = False, max_connections: int = 50, keep: Path | None = None) -> None:
        """`keep`: the folder of a server whose data outlives it; made where there is none."""
        self._bin = self._programs()[-1].parent
        self._is_kept = keep is not None
        # initdb refuses root, and pytest's own folders are closed to other users.
        self._folder = keep or Path(tempfile.mkdtemp(prefix="shardtune-pg-"))
        self._folder.mkdir(exist_ok=True)
        self._as_user: dict[str, Any] = {}
        if os.getuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self._folder, account.pw_uid, account.pw_gid)
            self._as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._data = str(self._folder / "data")
        self._options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._folder),
            "fsync": "on" if fsync else "off",
            "max_connections": str(max_connections),
            "max_wal_size": "8GB",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql+psycopg://shardtune@/{{name}}?host={self._folder}"
        """With `{name}` for the database; `postgres` exists from the start."""

    @staticmethod
    def _programs() -> list[Path]:
        return sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))

    @classmethod
    def is_installed(cls) -> bool:
        """Whether the server's programs are here."""
        return bool(cls._programs())

    def __enter__(self) -> Self:
        if not Path(self._data).exists():
            command = [str(self._bin / "initdb"), "-D", self._data, "-U", "shardtune", "-A", "trust", "--no-sync"]
            with self._log() as log:
                subprocess.run(command, check=True, stdout=log, stderr=log, cwd=self._folder, **self._as_user)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGINT if self._is_kept else signal.SIGQUIT)
        if not self._is_kept:
            shutil.rmtree(self._folder)

    def start(self) -> None:
        """Start it and wait until it answers; after a crash it recovers first."""
        # The kernel sends SIGQUIT, an immediate shutdown, when this process dies; pg_ctl would make it nobody's child.
        command = ["setpriv", "--pdeathsig", "QUIT", str(self._bin / "postgres"), "-D", self._data]
        command += [part for name, value in self._options.items() for part in ("-c", f"{name}={value}")]
        with self._log() as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, **self._as_user
            )
        until_s = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"PostgreSQL did not start: {(self._folder / 'server.log').read_text()[-2000:]}")
            time.sleep(0.05)

    def crash(self) -> None:
        """End it at once, without a checkpoint: every connection breaks, open transactions are lost."""
        self._end(signal.SIGQUIT)

    def _answers(self) -> bool:
        try:
            psycopg.connect(f"host={self._folder} user=shardtune dbname=postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def _log(self) -> BinaryIO:
        return (self._folder / "server.log").open("ab")


def administer(server: str, statement: str) -> None:
    """Run a statement that concerns whole databases; `server` is a server's `url`."""
    engine = create_engine(server.format(name="postgres"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))


def copy_of(server: str, database: str, name: str) -> str:
    """Copy a database that nobody is connected to; the copy's URL."""
    administer(server, f"CREATE DATABASE {name} TEMPLATE {database}")
    return server.format(name=name)
