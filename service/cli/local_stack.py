"""Run the service and one worker on this machine until a command ends."""

import os
import platform
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from alembic.util import CommandError
from filelock import FileLock, Timeout
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from shardtune.api_schemas.access import private_folder
from shardtune.api_schemas.access.credentials import FILE_VARIABLE, KEY_VARIABLE, hash_of
from shardtune.db.preparation import prepare_database
from shardtune.db.revisions import DatabaseNotMigrated
from shardtune.db.session import Database
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.service.cli.processes import MODULE, Child, listening_socket, wait_until
from shardtune.service.client import ServiceClient

DATABASE_VARIABLE = "SHARDTUNE_DATABASE_URL"
DATABASE_FILE = "shardtune.sqlite3"
_SERVICE_START_S = 60.0
_WORKER_START_S = 1800.0
"""Maximum seconds until a worker must have registered. The first worker on a machine may take long, because it builds
DeepSpeed's C++ operators."""
_LONGEST_REASON = 300
"""Maximum number of characters of a log line that tells why a worker ended."""
_MAX_RESTARTS = 3


def database_url(state_dir: Path) -> str:
    """Return the database URL from the environment or, if the environment has none, the URL of the SQLite file in the
    state directory."""
    return os.environ.get(DATABASE_VARIABLE) or sqlite_url(state_dir)


def sqlite_url(state_dir: Path) -> str:
    """Return the URL of the SQLite file in a state directory."""
    return f"sqlite:///{(state_dir / DATABASE_FILE).resolve()}"


def prepare_database_at(url: str) -> None:
    """Migrate a SQLite database to this version; another database is only checked.

    Raises:
        InputError: the database URL is not usable.
        PlatformFailure: the database cannot be reached, or is not SQLite and not migrated.
    """
    with database_errors(_remedy_of_database()):
        database = Database(url)
        try:
            prepare_database(database, url)
        finally:
            database.close()


def _remedy_of_database() -> str:
    if DATABASE_VARIABLE in os.environ:
        return f"check {DATABASE_VARIABLE}"
    return "see that the disk of --state-dir has room and can be written"


@contextmanager
def database_errors(remedy: str = f"check {DATABASE_VARIABLE}") -> Iterator[None]:
    """Convert errors of the database layer to messages for a person. `remedy` is appended to messages that state no
    remedy."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from None
    except DatabaseNotMigrated as error:
        raise PlatformFailure(str(error)) from None
    except (SQLAlchemyError, CommandError) as error:
        reason = str(error.orig) if isinstance(error, DBAPIError) else str(error)
        raise PlatformFailure(f"the database cannot be used: {' '.join(reason.split())}; {remedy}") from None


@contextmanager
def state_directory(path: Path) -> Iterator[Path]:
    """Create and lock the state directory, so that only this command uses it.

    Raises:
        InputError: the directory cannot be written, other users can write in it, or another command uses it.
    """
    resolved = make_state_directory(path)
    # The kernel releases the lock of a command that was killed, so that no stale lock keeps the next one out.
    lock = FileLock(resolved / "tune.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"--state-dir ({path}) is in use by another shardtune; wait for it, or choose another directory"
        ) from None
    # Beyond missing permissions: a read-only or full file system.
    except OSError as error:
        raise _not_writable(path, error) from None
    try:
        yield resolved
    finally:
        lock.release()


def make_state_directory(path: Path) -> Path:
    """Make the state directory, with its parents, and return its absolute path. A directory that exists is only
    checked.

    Raises:
        InputError: the directory cannot be written, or other users can write in it.
    """
    try:
        return private_folder.make(path, "--state-dir")
    except ValueError as error:
        raise InputError(str(error)) from None
    except OSError as error:
        raise _not_writable(path, error) from None


def _not_writable(path: Path, error: OSError) -> InputError:
    return InputError(f"--state-dir ({path}) cannot be written: {error.strerror}; choose another directory")


def _own_key() -> str | None:
    """Return a new secret API key that the service and its client share; None if both use the key of the
    environment."""
    return None if _sends_environments_key() else secrets.token_urlsafe(32)


def _sends_environments_key() -> bool:
    # In a database that several users share, the key decides which project owns a study.
    return DATABASE_VARIABLE in os.environ and any(os.environ.get(name) for name in (KEY_VARIABLE, FILE_VARIABLE))


@contextmanager
def local_service(state_dir: Path) -> Iterator[ServiceClient]:
    """Start the service on a free port of 127.0.0.1 and wait until it is ready.

    The client gets a key that only this service accepts, so that API keys in the database cannot lock out commands.
    """
    url, own_key = database_url(state_dir), _own_key()
    prepare_database_at(url)
    # The hash alone: other users can read a command line, and nobody finds the secret from it.
    own = [] if own_key is None else ["--own-key-hash", hash_of(own_key)]
    # The parent binds the port and passes the socket on: a port chosen and then released could be taken by another process.
    with listening_socket() as listener:
        port = listener.getsockname()[1]
        service = Child(
            "the service",
            [*MODULE, "shardtune", "serve", "--fd", str(listener.fileno()), *own],
            state_dir / "logs" / "service.log",
            environment={DATABASE_VARIABLE: url},
        )
        service.start(pass_fds=[listener.fileno()])
    try:
        with ServiceClient(f"http://127.0.0.1:{port}", api_key=own_key) as client:
            wait_until(client.ready, service, _SERVICE_START_S, "ready")
            yield client
    finally:
        service.stop(patience_s=5)


class LocalWorker:
    """A worker process on this machine that is restarted when it dies during a study."""

    def __init__(
        self,
        client: ServiceClient,
        state_dir: Path,
        ranks: int | None,
        memory_gib: float | None,
        options: Sequence[str] = (),
    ) -> None:
        """Prepare the worker's command line; `options` are further options of `python -m shardtune.workers`."""
        self._client = client
        # The name outlives the process: a resumed study takes over the leases of the interrupted one at once. Over hosts the
        # name has no host in it, because a requeued job may start on any of them; they share the state directory.
        self.name = f"{_hosts_name(options) if '--launcher' in options else platform.node()}:{state_dir}"[-200:]
        command = [*MODULE, "shardtune.workers", "--service", client.base_url, "--work-dir", str(state_dir / "worker")]
        command += ["--name", self.name]
        command += ["--ranks", str(ranks)] if ranks else []
        command += ["--memory-gib", str(memory_gib)] if memory_gib else []
        command += options
        # Not on the command line, which other users can read; the worker hides it from its ranks.
        key = None if _sends_environments_key() else client.api_key
        environment = {} if key is None else {KEY_VARIABLE: key}
        self._child = Child("the worker", command, state_dir / "logs" / "worker.log", environment=environment)
        self._status_file = state_dir / "worker" / "doing.txt"
        self._last_news = ""
        self._restarts = 0

    def start(self, say: Callable[[str], None]) -> None:
        """Start the worker and wait until it has registered; `say` receives the reason for a long start.

        Raises:
            PlatformFailure: the worker ended or did not register.
        """
        earlier = self._registration_times()
        self._child.start()

        def registered() -> bool:
            if (news := self.news()) is not None:
                say(news)
            return bool(self._registration_times() - earlier)

        wait_until(registered, self._child, _WORKER_START_S, "registered")

    def news(self) -> str | None:
        """Return the reason why the worker takes no work (it builds operators, or its GPU is occupied) if the reason
        is new; None otherwise."""
        try:
            words = self._status_file.read_text()
        except OSError:
            words = ""
        is_new, self._last_news = words != self._last_news, words
        return words if is_new and words else None

    def keep_alive(self) -> str | None:
        """Restart the worker if it has died; return how it ended, with the last line of its log. None if it lives.

        Raises:
            PlatformFailure: the worker died too often.
        """
        code = self._child.exit_code()
        if code is None:
            return None
        if self._restarts == _MAX_RESTARTS:
            raise self._child.failure(f"ended {_MAX_RESTARTS + 1} times, last with exit code {code}")
        self._restarts += 1
        last_line = next(reversed(self._child.log_tail()), "")[:_LONGEST_REASON]
        self._child.start()
        return f"exit code {code}" + (f"; {last_line}" if last_line else "")

    def stop(self) -> None:
        """Stop the worker and its ranks."""
        self._child.stop(patience_s=15)

    def _registration_times(self) -> set[datetime]:
        """Return the times at which workers with this worker's name registered; a new time shows that this worker has
        registered."""
        return {worker.registered_at for worker in self._client.workers() if worker.name == self.name}


def _hosts_name(options: Sequence[str]) -> str:
    """Return the name of a worker that runs over several hosts; the name contains the number of hosts.

    If a worker had the same name over two hosts and later over eight, its hardware would seem to have changed, and the
    answer measured on two hosts would become stale.
    """
    nodes = [value for flag, value in pairwise(options) if flag == "--nodes"]
    return f"hosts-{nodes[-1]}" if nodes else "hosts"
