"""Faults of database statements do what they say, on both databases: what is lost was done or not, as announced."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.service.soak.statement_faults import Fault
from tests.support.service.postgres_server import administer

_PROGRAM = """
import sys
from pathlib import Path
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from benchmarks.service.soak.statement_faults import Fault, Schedule, StatementFaults
from shardtune.db.limits import DatabaseLimits, is_outage
from shardtune.db.session import make_engine

url, fault, record = sys.argv[1], Fault(sys.argv[2]), Path(sys.argv[3])
engine = make_engine(url, DatabaseLimits())
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE counts (number INTEGER)"))
faults = StatementFaults(Schedule(0, 0.0, record))
faults.install()
is_due = True

def next_fault(among):
    global is_due
    due, is_due = is_due and fault in among, is_due and fault not in among
    return fault if due else None

faults._next = next_fault
try:
    with engine.execution_options(begin_immediate=True).begin() as connection:
        connection.execute(text("INSERT INTO counts VALUES (1)"))
    print("no error")
except DBAPIError as error:
    print("outage" if is_outage(error) else "other error")
with engine.connect() as connection:
    print(connection.execute(text("SELECT count(*) FROM counts")).scalar())
"""


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
    command = [sys.executable, "-c", _PROGRAM, url, fault.value, str(tmp_path / "record")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split("\n")
    assert printed[:2] == [outcome, str(rows)]
