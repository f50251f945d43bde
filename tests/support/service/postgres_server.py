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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

import psutil
import psycopg

_START_S = 120.0


class PostgresServer:
    """Runs while the `with` block does; can be crashed and started again."""

    def __init__(
        self,
        fsync: bool = False,
        max_connections: int = 50,
        keep: Path | None = None,
        address: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`keep`: the folder of a server whose data outlives it; made where there is none.

        `address`: of a network in which it also listens, open to everybody there. `environment`: variables beside ours.
        """
        self._environment = os.environ | (environment or {})
        self._bin = self._programs()[-1].parent
        self._is_kept = keep is not None
        # initdb rejects root, and pytest's own folders are closed to other users.
        self._folder = keep or Path(tempfile.mkdtemp(prefix="shardtune-pg-"))
        self._folder.mkdir(exist_ok=True)
        self._as_user: dict[str, Any] = {}
        if os.getuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self._folder, account.pw_uid, account.pw_gid)
            self._as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._data = str(self._folder / "data")
        self._options = {
            "listen_addresses": address,
            "unix_socket_directories": str(self._folder),
            "fsync": "on" if fsync else "off",
            "max_connections": str(max_connections),
            "max_wal_size": "8GB",
            # A server of tests has hundreds of databases that live for a second: its launcher would visit them for ever.
            "autovacuum": "on" if fsync or keep else "off",
        }
        self._address = address
        self.folder = self._folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql+psycopg://shardtune@/{{name}}?host={self._folder}"
        """URL with `{name}` for the database; `postgres` exists from the start."""

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
            if self._address:
                with (Path(self._data) / "pg_hba.conf").open("a") as rules:
                    rules.write(f"host all all {self._address}/24 trust\n")
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
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                **self._as_user,
            )
        until_s = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"PostgreSQL did not start: {(self._folder / 'server.log').read_text()[-2000:]}")
            time.sleep(0.05)

    @contextmanager
    def standby(self) -> Iterator["PostgresServer"]:
        """A second server that follows this one, until it is promoted."""
        other = PostgresServer()
        command = [str(self._bin / "pg_basebackup"), "-D", other._data, "-h", str(self._folder), "-U", "shardtune"]
        with other._log() as log:
            subprocess.run(
                [*command, "-R", "-X", "stream", "-c", "fast"],
                check=True, stdout=log, stderr=log, cwd=other._folder, **other._as_user,
            )  # fmt: skip
        with other:
            yield other

    def wait_for_standby(self) -> None:
        """Make commits wait for the standby, which has followed so far."""
        with psycopg.connect(self._target, autocommit=True) as session:
            until_s = time.monotonic() + _START_S
            while session.execute("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'").fetchone() is None:
                assert time.monotonic() < until_s, "no standby follows"
                time.sleep(0.05)
            session.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            session.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Become the server that is written to."""
        with psycopg.connect(self._target, autocommit=True) as session:
            session.execute("SELECT pg_promote()")

    @property
    def _target(self) -> str:
        return f"host={self._folder} user=shardtune dbname=postgres"

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes; SIGSTOP makes a server that hangs, without a word to anybody."""
        assert self._process is not None
        for child in (server := psutil.Process(self._process.pid)).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.send_signal(number)
        server.send_signal(number)

    def cpu_s(self) -> float:
        """Processor time of all of its processes so far, those that have ended included."""
        assert self._process is not None
        total = 0.0
        for item_value in ((server := psutil.Process(self._process.pid)), *server.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = item_value.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def is_running(self) -> bool:
        """Whether the server's first process lives; a full disk may end it."""
        return self._process is not None and self._process.poll() is None

    def crash(self) -> None:
        """End it at once, without a checkpoint: every connection breaks, open transactions are lost."""
        self._end(signal.SIGQUIT)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self._target).close()
        except psycopg.OperationalError:
            return False
        return True

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def _log(self) -> BinaryIO:
        return (self._folder / "server.log").open("ab")


def administer(server: str, statement: str) -> None:
    """Run a statement that concerns whole databases; `server` is a server's `url`."""
    where = server.format(name="postgres").replace("+psycopg", "", 1)
    with psycopg.connect(where, autocommit=True) as session:
        session.execute(statement)


def copy_of(server: str, database: str, name: str) -> str:
    """Copy a database that nobody is connected to; the copy's URL."""
    administer(server, f"CREATE DATABASE {name} TEMPLATE {database}")
    return server.format(name=name)
