"""A database of an earlier revision keeps everything through upgrade, downgrade and upgrade."""

import json
from datetime import UTC, datetime

import pytest
from alembic import command
from sqlalchemy import MetaData, Table, select

from shardtune.api_schemas.machines.hardware import Inventory
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study import StudySpec
from shardtune.db.queries import studies, trials
from shardtune.db.session import Database, make_engine, migration_config, upgrade
from shardtune.db.tables.fingerprints import FingerprintPeriodRow
from shardtune.db.tables.retunes import ScheduleRow
from shardtune.db.tables.studies import WorkerRow
from tests.support.service.simulated_worker import CLUSTER, FINGERPRINT, SPEC

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FIRST = {
    "fingerprints": {"key": "f", "value": FINGERPRINT, "first_seen_at": NOON},
    "workers": {
        "id": "worker-1",
        "name": "w",
        "session": "session-1",
        "inventory": Inventory(cluster=CLUSTER, fingerprint=FINGERPRINT),
        "fingerprint_key": "f",
        "registered_at": NOON,
        "seen_at": NOON,
    },
    "studies": {
        "id": "study-1",
        "version": 7,
        "state": "complete",
        "phase": "done",
        "spec": StudySpec.model_validate(SPEC),
        "cluster": CLUSTER,
        "notes": ["kept"],
        "has_nvme": False,
        "fingerprint_key": "f",
        "gpu_seconds": 12.5,
        "match_round": 1,
        "created_at": NOON,
        "finished_at": NOON,
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
        "match_round": 0,
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
"""A row of each table of revision 0001, written without the classes of today."""
GONE = {"has_nvme"}
"""Columns of theirs that there are no more."""
RENAMED = {"match_round": "comparison_round"}
"""Columns of theirs that have another name today."""


@pytest.fixture
def populated(empty_database_url):
    """A database as the first release left it."""
    with migration_config(empty_database_url) as config:
        command.upgrade(config, "0001")
    engine = make_engine(empty_database_url)
    with engine.begin() as connection:
        for name, row in FIRST.items():
            table = Table(name, MetaData(), autoload_with=connection)
            plain = {
                key: json.loads(v.model_dump_json()) if hasattr(v, "model_dump_json") else v for key, v in row.items()
            }
            # The first release knew no such field.
            plain.get("spec", {}).get("budget", {}).pop("repeat_disturbed", None)
            plain.get("spec", {}).get("budget", {}).pop("profile", None)
            plain.get("spec", {}).pop("wait_for_worker_s", None)
            if name == "workers":
                plain["inventory"].pop("share")
            connection.execute(table.insert(), plain)
    yield empty_database_url
    engine.dispose()


def stored(url):
    """Every row, but only the columns the first revision had."""
    engine = make_engine(url)
    with engine.connect() as connection:
        tables = {name: Table(name, MetaData(), autoload_with=connection) for name in FIRST}
        rows = {
            name: connection.execute(select(*(_column(table, c) for c in FIRST[name] if c not in GONE))).all()
            for name, table in tables.items()
        }
    engine.dispose()
    return rows


def _column(table, name):
    return table.c[name] if name in table.c else table.c[RENAMED[name]]


def test_what_got_another_name_keeps_what_it_held(populated):
    with migration_config(populated) as config:
        command.upgrade(config, "0014")
    engine = make_engine(populated)
    with engine.begin() as connection:
        table = Table("studies", MetaData(), autoload_with=connection)
        match = {"baseline": 0, "candidates": [3], "notes": ["n"]}
        connection.execute(table.update().values(match=match, errand={"kind": "canary", "most_runs": 2}))
        table = Table("schedules", MetaData(), autoload_with=connection)
        spec = {"name": "nightly", "trigger": "manual", "cases": {"study_keys": ["0" * 32], "model": None}}
        moments = dict.fromkeys(("created_at", "updated_at"), NOON)
        recorded = {"id": "s", "project_id": "default", "trigger": "manual", "is_paused": False, "version": 0}
        connection.execute(table.insert().values(**recorded, **moments, spec=spec))
    engine.dispose()
    upgrade(populated)
    database = Database(populated)
    with database.read() as session:
        study = studies.get(session, "study-1")
        assert (study.comparison_round, study.final_comparison.candidates) == (1, (3,))
        assert (study.system_study.kind, study.system_study.most_runs) == ("canary", 2)
        (period,) = session.scalars(select(FingerprintPeriodRow))
        assert (period.worker_id, period.fingerprint_key) == ("worker-1", "f")
        (schedule,) = session.scalars(select(ScheduleRow))
        assert (schedule.spec.cases.target_keys, schedule.spec.cases.model) == (("0" * 32,), None)
    database.close()
    with migration_config(populated) as config:
        command.downgrade(config, "0014")
    with migration_config(populated) as config:
        command.upgrade(config, "head")
        command.check(config)


def test_what_told_of_nvme_is_forgotten_and_the_rest_is_read(populated):
    engine = make_engine(populated)
    with engine.begin() as connection:
        for name, column, path in (("studies", "spec", ["space"]), ("workers", "inventory", [])):
            table = Table(name, MetaData(), autoload_with=connection)
            value = json.loads(FIRST[name][column].model_dump_json())
            inner = value[path[0]] if path else value
            inner |= {"allow_nvme": False} if path else {"nvme_path": None}
            connection.execute(table.update().values({column: value}))
    engine.dispose()
    upgrade(populated)
    database = Database(populated)
    with database.read() as session:
        assert studies.get(session, "study-1").spec == StudySpec.model_validate(SPEC)
        assert session.scalars(select(WorkerRow)).one().inventory == FIRST["workers"]["inventory"]
    database.close()


def test_a_verdict_that_was_not_confirmed_is_told_apart_and_back(populated):
    speedups = {
        "undecided": {"value": 1.65, "ci95": [0.86, 5.81], "pairs": 7},
        "not_faster": {"value": 0.99, "ci95": [0.97, 1.02], "pairs": 7},
    }
    config = json.loads(TrialConfig(strategy=DdpConfig()).model_dump_json())
    recorded = {"trial_number": 0, "config": config, "description": "DDP", "tokens_per_s_per_gpu": 1.0, "runs": 1}
    recorded |= {"peak_allocated_gib": None, "peak_reserved_gib": None}
    engine = make_engine(populated)
    for word, speedup in speedups.items():
        with migration_config(populated) as alembic:
            command.upgrade(alembic, "0018")
        result = {"best": recorded, "baseline": recorded, "speedup": speedup, "verdict": "no_significant_improvement"}
        with engine.begin() as connection:
            table = Table("studies", MetaData(), autoload_with=connection)
            connection.execute(table.update().values(result=result))
        upgrade(populated)
        database = Database(populated)
        with database.write() as session:
            study = studies.lock(session, "study-1")
            assert study.result.verdict == word
            # As a study of today leaves it.
            study.result = study.result.model_copy(update={"notes": ("kept",)})
            study.spec = study.spec.model_copy(update={"seed": 1})
        database.close()
        with migration_config(populated) as alembic:
            command.downgrade(alembic, "0018")
        with engine.begin() as connection:
            stored_result, spec = connection.execute(select(table.c.result, table.c.spec)).one()
        assert stored_result["verdict"] == "no_significant_improvement"
        assert "against_defaults" not in stored_result and "repeat_disturbed" not in spec["budget"]
    engine.dispose()


def test_data_of_the_first_revision_survives_every_migration(populated):
    before = stored(populated)
    upgrade(populated)
    assert stored(populated) == before
    with migration_config(populated) as config:
        command.check(config)
    database = Database(populated)
    with database.read() as session:
        study = studies.get(session, "study-1")
        assert (study.spec, study.notes, study.last_event) == (StudySpec.model_validate(SPEC), ("kept",), 0)
        assert trials.of_study(session, "study-1", with_attempts=True)[0].runs[0].attempts[0].end == "complete"
    with database.write() as session:
        studies.lock(session, "study-1").reason = "still writable"
    database.close()
    with migration_config(populated) as config:
        command.downgrade(config, "0001")
    assert stored(populated) == before
    upgrade(populated)
    assert stored(populated) == before
