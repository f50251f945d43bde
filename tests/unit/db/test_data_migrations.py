"""A populated database of an earlier revision keeps its rows through upgrade, downgrade and upgrade.

Another revision, planted beside a copy of them, proves that these tests would notice a loss.
"""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, Table, select

from shardtune.api_schemas.access.keys import DEFAULT_PROJECT
from shardtune.api_schemas.machines.hardware import Inventory, Offer
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.db import revisions
from shardtune.db.queries import studies, trials
from shardtune.db.session import Database, make_engine, migration_config, upgrade
from tests.support.service.simulated_worker import CLUSTER, FINGERPRINT, SPEC

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
INITIAL = "0001_initial"
ROWS = {
    "fingerprints": {"key": "f", "value": FINGERPRINT, "first_seen_at": NOON},
    "workers": {
        "id": "worker-1",
        "name": "w",
        "session": "session-1",
        "offer": Offer(cluster=CLUSTER, fingerprint=FINGERPRINT),
        "inventory": Inventory(cluster=CLUSTER, fingerprint=FINGERPRINT),
        "fingerprint_key": "f",
        "registered_at": NOON,
        "seen_at": NOON,
        "is_draining": False,
    },
    "studies": {
        "id": "study-1",
        "project_id": DEFAULT_PROJECT,
        "version": 7,
        "state": "complete",
        "phase": "done",
        "spec": StudySpec.model_validate(SPEC),
        "cluster": CLUSTER,
        "notes": ["kept"],
        "fingerprint_key": "f",
        "gpu_seconds": 12.5,
        "comparison_round": 1,
        "purpose": "user",
        "created_at": NOON,
        "started_at": NOON,
        "finished_at": NOON,
        "last_event": 0,
    },
    "trials": {
        "id": 1,
        "study_id": "study-1",
        "number": 0,
        "state": "complete",
        "origin": "default",
        "config": TrialConfig(strategy=DdpConfig()),
        "config_key": "k",
        "created_at": NOON,
        "finished_at": NOON,
    },
    "runs": {
        "id": "run-1",
        "study_id": "study-1",
        "trial_id": 1,
        "position": 0,
        "purpose": "search",
        "comparison_round": 0,
        "state": "complete",
        "attempt": 1,
        "worker_id": "worker-1",
        "worker_session": "session-1",
        "log_tail": "kept",
        "created_at": NOON,
        "finished_at": NOON,
    },
    "attempts": {
        "id": 1,
        "run_id": "run-1",
        "attempt": 1,
        "worker_id": "worker-1",
        "worker_session": "session-1",
        "started_at": NOON,
        "finished_at": NOON,
        "end": "complete",
        "gpu_seconds": 12.5,
    },
}
"""A row of each table at the initial revision, written without the classes of today."""
RENAMED: dict[str, str] = {}
"""Columns of these rows that a later revision renamed: their name at the initial revision, and today's."""
DROPPED: set[str] = set()
"""Columns of these rows that a later revision dropped."""

PLANTED = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "9999_planted", "{head}", None, None


def upgrade():
    with op.batch_alter_table("runs") as table:
        table.add_column(sa.Column("colour", sa.String(8), nullable=False, server_default="red"))
    {fault}


def downgrade():
    with op.batch_alter_table("runs") as table:
        table.drop_column("colour")
"""


@pytest.fixture
def populated(empty_database_url):
    """A database as the initial revision left it."""
    with migration_config(empty_database_url) as config:
        command.upgrade(config, INITIAL)
    engine = make_engine(empty_database_url)
    with engine.begin() as connection:
        for name, row in ROWS.items():
            table = Table(name, MetaData(), autoload_with=connection)
            plain = {
                key: json.loads(v.model_dump_json()) if hasattr(v, "model_dump_json") else v for key, v in row.items()
            }
            connection.execute(table.insert(), plain)
    engine.dispose()
    return empty_database_url


@pytest.fixture
def plant(tmp_path, monkeypatch):
    """Adds a second revision to a copy of the migrations, with one more statement."""

    def _plant(fault: str) -> None:
        scripts = tmp_path / "migrations"
        head = ScriptDirectory.from_config(revisions.script_config()).get_current_head()
        shutil.copytree(Path(revisions.__file__).parent / "migrations", scripts)
        (scripts / "versions" / "9999_planted.py").write_text(PLANTED.format(fault=fault, head=head))
        monkeypatch.setattr(revisions, "_SCRIPTS", scripts)
        forget_revisions()

    yield _plant
    monkeypatch.undo()
    forget_revisions()


def forget_revisions() -> None:
    revisions._head_revisions.cache_clear()
    revisions._known_revisions.cache_clear()


def stored(url):
    """Every row, but only the columns that the initial revision had."""
    engine = make_engine(url)
    with engine.connect() as connection:
        tables = {name: Table(name, MetaData(), autoload_with=connection) for name in ROWS}
        rows = {
            name: connection.execute(select(*(_column(table, c) for c in ROWS[name] if c not in DROPPED))).all()
            for name, table in tables.items()
        }
    engine.dispose()
    return rows


def _column(table, name):
    return table.c[name] if name in table.c else table.c[RENAMED[name]]


def survives(url) -> bool:
    """Whether every row is the same after an upgrade, after a downgrade, and after a second upgrade."""
    before = stored(url)
    upgrade(url)
    upgraded = stored(url)
    with migration_config(url) as config:
        command.downgrade(config, INITIAL)
    downgraded = stored(url)
    upgrade(url)
    return before == upgraded == downgraded == stored(url)


def test_data_of_the_initial_revision_survives_every_migration(populated):
    assert survives(populated)
    with migration_config(populated) as config:
        command.check(config)


def test_data_of_the_initial_revision_is_read_and_written_by_todays_classes(populated):
    upgrade(populated)
    database = Database(populated)
    with database.read() as session:
        study = studies.get(session, "study-1")
        assert (study.spec, study.notes, study.last_event) == (StudySpec.model_validate(SPEC), ("kept",), 0)
        assert trials.of_study(session, "study-1", with_attempts=True)[0].runs[0].attempts[0].end == "complete"
    with database.write() as session:
        studies.lock(session, "study-1").reason = "still writable"
    database.close()


def test_a_revision_that_keeps_every_row_passes(populated, plant):
    plant("pass")
    assert survives(populated)


def test_reasons_that_were_sentences_get_codes(populated):
    contender = {"trial_number": 0, "description": "DDP", "tokens_per_s_per_gpu": 1.0}
    reasons = {
        "all": "every configuration that may fit has been tried",
        "waits": "waiting for a worker: w has another driver",
        "other": "all 3 trials of the budget are used",
    }
    notes = ["a note", "the given baseline was replaced: 5 % (of what) it had"]
    with migration_config(populated) as config:
        command.upgrade(config, "0007_worker_protocol")
    engine = make_engine(populated)
    with engine.begin() as connection:
        tables = {name: Table(name, MetaData(), autoload_with=connection) for name in ("studies", "retunes")}
        study = dict(connection.execute(select(tables["studies"])).mappings().one())
        for name, reason in reasons.items():
            values = {"id": name, "reason": reason, "result": {"best": contender, "notes": notes}}
            connection.execute(tables["studies"].insert(), study | values)
        retune = {
            "project_id": DEFAULT_PROJECT,
            "target_key": "t",
            "cause": "manual",
            "changes": [],
            "created_at": NOON,
            "not_before": NOON,
        }
        for name, (state, outcome, reason) in {
            "kept": ("ended", "kept", "kept: 3 pairs (of 3)"),
            "long": ("running", None, "waits for budget, at most until the next day: 5"),
        }.items():
            values = {"id": name, "state": state, "outcome": outcome, "reason": reason, "tries": 0, "gpu_seconds": 0}
            connection.execute(tables["retunes"].insert(), retune | values)
    engine.dispose()
    upgrade(populated)
    engine = make_engine(populated)
    with engine.connect() as connection:
        tables = {name: Table(name, MetaData(), autoload_with=connection) for name in ("studies", "retunes")}
        rows = {row.id: row for row in connection.execute(select(tables["studies"]))}
        ended = {row.id: row for row in connection.execute(select(tables["retunes"]))}
    engine.dispose()
    assert [rows[name].reason_code for name in reasons] == ["all_tried", "waits_for_worker", None]
    assert rows["all"].reason == reasons["all"] and rows["all"].result["notes"] == notes
    assert rows["all"].result["replaced_baseline"] == "5 % (of what) it had"
    assert ended["kept"].reason == "3 pairs (of 3)" and not ended["kept"].waits_for_budget
    assert ended["long"].waits_for_budget


@pytest.mark.parametrize(
    "fault", ['op.execute("DELETE FROM attempts")', "op.execute(\"UPDATE studies SET notes = '[]'\")"]
)
def test_a_revision_that_loses_data_is_noticed(populated, plant, fault):
    plant(fault)
    assert not survives(populated)
