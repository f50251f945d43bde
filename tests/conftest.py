"""A fresh, migrated database for each test that asks for one: SQLite, and Postgres where its programs are."""

import gc
import itertools
import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from shardtune.db.session import Database, upgrade
from tests.support.requirements import missing
from tests.support.service.postgres_server import PostgresServer, administer, copy_of
from tests.tools import sqlite_copies, statement_cache

pytest_plugins = ["tests.tools.module_order"]
# Each worker here has a folder of its own, and would measure the machine for half a minute.
os.environ.setdefault("SHARDTUNE_WORKER_MEASURE_RATES", "false")
# What DeepSpeed counts without numactl; else CPU ranks start a process at each reduction under ZeRO-3 to ask it.
os.environ.setdefault("LOCAL_SIZE", "1")
_NUMBERS = itertools.count()
statement_cache.install()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collections: what is imported and collected stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Logs go where they went before, also after a command that sent this process's to the test's own stderr."""
    root = logging.getLogger()
    level, before = root.level, set(root.handlers)
    yield
    root.setLevel(level)
    for handler in set(root.handlers) - before:
        root.removeHandler(handler)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A PostgreSQL server on a Unix socket in a folder of its own; yields a URL with `{name}` for the database."""
    if not PostgresServer.is_installed():
        missing("PostgreSQL's server")
    with PostgresServer() as server:
        yield server.url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> str:
    """A migrated database to copy."""
    administer(postgres_server, "CREATE DATABASE migrated")
    upgrade(postgres_server.format(name="migrated"))
    return "migrated"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to copy."""
    path = tmp_path_factory.mktemp("template") / "migrated.sqlite3"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def empty_postgres_url(postgres_server: str) -> str:
    """A Postgres database without tables."""
    name = f"empty_{next(_NUMBERS)}"
    administer(postgres_server, f"CREATE DATABASE {name}")
    return postgres_server.format(name=name)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/empty.sqlite3"
    return request.getfixturevalue("empty_postgres_url")


@pytest.fixture
def sqlite_start(sqlite_template: Path) -> Path:
    """The file that a test's database is a copy of."""
    return sqlite_template


@pytest.fixture
def postgres_start(postgres_template: str) -> str:
    """The database that a test's own is a copy of."""
    return postgres_template


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_start: Path) -> str:
    """A migrated SQLite database."""
    sqlite_copies.copy(sqlite_start, tmp_path / "shardtune.sqlite3")
    return f"sqlite:///{tmp_path}/shardtune.sqlite3"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database of each kind."""
    if request.param == "sqlite":
        return request.getfixturevalue("sqlite_url")
    server, start = request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_start")
    return copy_of(server, start, f"test_{next(_NUMBERS)}")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An open database of each kind."""
    opened = Database(database_url)
    yield opened
    opened.close()
