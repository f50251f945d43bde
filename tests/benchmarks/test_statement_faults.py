"""Faults of database statements do what they say, on both databases: what is lost was done or not, as announced."""

import json
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from benchmarks.service.soak.statement_faults import Fault, Schedule, StatementFaults
from shardtune.db.limits import DatabaseLimits, is_outage
from shardtune.db.session import make_engine
from tests.support.processes import preloaded_forks
from tests.support.service.postgres_server import administer


def meet(fault: Fault, url: str, folder: Path) -> None:
    """Insert a row into a table of a new database, once with the fault in it, and write how that ended, and how many
    rows there are then; to be called in a fork, which has the faults until its end."""
    engine = make_engine(url, DatabaseLimits())
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE counts (number INTEGER)"))
    faults = StatementFaults(Schedule(0, 0.0, folder / "record"))
    faults.install()
    is_due = True

    def next_fault(among: tuple[Fault, ...]) -> Fault | None:
        nonlocal is_due
        due, is_due = is_due and fault in among, is_due and fault not in among
        return fault if due else None

    faults._next = next_fault  # type: ignore[method-assign]
    try:
        with engine.execution_options(begin_immediate=True).begin() as connection:
            connection.execute(text("INSERT INTO counts VALUES (1)"))
        end = "no error"
    except DBAPIError as error:
        end = "outage" if is_outage(error) else "other error"
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT count(*) FROM counts")).scalar()
    (folder / "outcome.json").write_text(json.dumps([end, rows]))


@pytest.mark.parametrize(
    ("fault", "outcome", "rows"),
    [
        (Fault.LOST_CONNECTION, "outage", 0),
        (Fault.LOST_ANSWER, "outage", 0),
        (Fault.CANCELLED, "outage", 0),
        (Fault.HANGING, "no error", 1),
        (Fault.COMMIT_FAILED, "outage", 0),
        # The one that only a repetition with the same key makes harmless.
        (Fault.COMMIT_UNANSWERED, "outage", 1),
    ],
)
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_each_fault_is_an_outage_and_leaves_what_it_says(
    fault: Fault, outcome: str, rows: int, database: str, tmp_path: Path, postgres_server: str
) -> None:
    url = f"sqlite:///{tmp_path / 'counts.sqlite3'}"
    if database == "postgres":
        name = f"faults_{fault.name.lower()}"
        administer(postgres_server, f"CREATE DATABASE {name}")
        url = postgres_server.format(name=name)
    preloaded_forks.fork(meet, fault, url, tmp_path, output=tmp_path / "printed").join(60)
    written = tmp_path / "outcome.json"
    assert written.exists(), (tmp_path / "printed").read_text()
    assert json.loads(written.read_text()) == [outcome, rows]
