"""Rows that another transaction begins to use are not deleted, although they look unused."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, text

from shardtune.api_schemas.machines.hardware import Inventory
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db import retention
from shardtune.db.queries import fingerprints, leases, workers
from shardtune.db.session import Database, upgrade
from shardtune.db.tables.fingerprint_periods import FingerprintPeriodRow
from shardtune.db.tables.fingerprints import FingerprintRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow
from shardtune.db.tables.workers import WorkerRow
from tests.support.processes.stack import until
from tests.support.service.simulated_worker import CLUSTER, FINGERPRINT, SPEC

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(days=100)
INVENTORY = Inventory(cluster=CLUSTER, fingerprint=FINGERPRINT)
UNUSED = FINGERPRINT.model_copy(update={"kernel": "6.9"})


@pytest.fixture
def postgres(empty_postgres_url):
    """Database with a worker that nobody has heard of for long, a run that waits, and a fingerprint without a worker."""
    upgrade(empty_postgres_url)
    database = Database(empty_postgres_url)
    with database.write() as session:
        worker = workers.put(session, "w", "session-1", INVENTORY, NOON)
        workers.begin(session, worker, "session-1", INVENTORY, NOON, None)
        fingerprints.put(session, UNUSED, NOON)
        study = StudyRow(
            id="study-1",
            state=StudyState.RUNNING,
            phase=StudyPhase.SEARCH,
            spec=StudySpec.model_validate(SPEC),
            cluster=CLUSTER,
            notes=(),
            created_at=NOON,
        )
        session.add(study)
        session.flush()
        leases.add_run(session, study, None, "model_summary", NOON)
    yield database
    database.close()


def come_back(session):
    row = workers.put(session, "w", "session-2", INVENTORY, LATER)
    workers.begin(session, row, "session-2", INVENTORY, LATER, None)
    session.flush()


def take_run(session):
    run, worker = session.scalars(select(RunRow)).one(), workers.by_session(session, "session-1")
    leases.start(session, run, worker, LATER, LATER)
    run.state = TrialState.RUNNING
    session.flush()


def bring_fingerprint(session):
    inventory = Inventory(cluster=CLUSTER, fingerprint=UNUSED)
    row = workers.put(session, "other", "session-3", inventory, LATER)
    workers.begin(session, row, "session-3", inventory, LATER, None)
    session.flush()


def delete_old(database):
    with database.write() as session:
        return retention.delete_workers(session, LATER), retention.delete_fingerprints(session, LATER)


def waits_for_lock(database):
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with database.read_connection() as connection:
        return connection.scalar(text(query))


def deleted_beside(database, use):
    """Numbers of workers and fingerprints that are deleted while another transaction begins to use one of them."""
    deleted = []
    deletion = threading.Thread(target=lambda: deleted.append(delete_old(database)))
    with database.write() as session:
        use(session)
        deletion.start()
        # Until then, the deletion has seen the rows as they were before.
        until(lambda: deleted or waits_for_lock(database) or not deletion.is_alive(), 20, "the deletion waits or ends")
    deletion.join()
    assert deleted, "the deletion failed"
    return deleted[0]


@pytest.mark.postgres
@pytest.mark.parametrize(("use", "workers_gone"), [(come_back, 0), (take_run, 0), (bring_fingerprint, 1)])
def test_what_is_used_at_the_moment_of_its_deletion_stays(postgres, use, workers_gone):
    # The fingerprint that no other transaction uses: the unused one, or that of the worker that is deleted.
    assert deleted_beside(postgres, use) == (workers_gone, 1)
    with postgres.read() as session:
        periods = session.scalars(select(FingerprintPeriodRow.worker_id)).all()
        kept = session.execute(select(WorkerRow.id, WorkerRow.session)).all()
        assert len(kept) == 1 and periods == [kept[0].id], "a worker is kept with the record of its fingerprints"


def test_what_nobody_uses_is_deleted(database):
    with database.write() as session:
        worker = workers.put(session, "w", "session-1", INVENTORY, NOON)
        workers.begin(session, worker, "session-1", INVENTORY, NOON, None)
    assert delete_old(database) == (1, 1)
    with database.read() as session:
        for row in (WorkerRow, FingerprintPeriodRow, FingerprintRow):
            assert session.scalar(select(func.count()).select_from(row)) == 0
