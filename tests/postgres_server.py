"""A PostgreSQL server of our own, on a Unix socket in a folder of its own; for tests, the soak and the benchmarks."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self


class PostgresServer:
    """Runs while the `with` block does; can be crashed and started again."""

    def __init__(self, fsync: bool = False, max_connections: int = 50) -> None:
        self._bin = self._programs()[-1].parent
        # initdb refuses root, and pytest's own folders are closed to other users.
        self._folder = Path(tempfile.mkdtemp(prefix="shardtune-pg-"))
        self._as_user: dict[str, Any] = {}
        if os.getuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self._folder, account.pw_uid, account.pw_gid)
            self._as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._data = str(self._folder / "data")
        self._options = (
            f"-c listen_addresses='' -c unix_socket_directories={self._folder} "
            f"-c fsync={'on' if fsync else 'off'} -c max_connections={max_connections}"
        )
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
        self._run("initdb", "-D", self._data, "-U", "shardtune", "-A", "trust", "--no-sync")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "stop", check=False)
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Start it and wait until it answers; after a crash it recovers first."""
        self._run(
            "pg_ctl", "-D", self._data, "-w", "-l", str(self._folder / "server.log"), "-o", self._options, "start"
        )

    def crash(self) -> None:
        """End it at once, without a checkpoint: every connection breaks, open transactions are lost."""
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "stop")

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        command = [str(self._bin / program), *arguments]
        with (self._folder / "output.log").open("ab") as log:
            subprocess.run(command, check=check, stdout=log, stderr=log, cwd=self._folder, **self._as_user)
