"""A study's whole life once for every commit in it, with the service killed before or after that commit.

Whoever got no answer asks a new process the same again, as workers do. In the end the history must be the one of the
undisturbed life. SHARDTUNE_TEST_LONG=1 has every commit; else the runs of a promotion, which are alike, are left out,
and SQLite has every third point, Postgres every fifth.
"""

import itertools
import os
import shutil
from collections import Counter

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.pool import NullPool

from shardtune.api_schemas.hardware import Inventory
from shardtune.api_schemas.leases import PROTOCOL_VERSION
from shardtune.db.session import Database
from shardtune.db.tables.studies import EventRow, RunRow, StudyRow, TrialRow
from tests.support import history
from tests.support.mortal_service import Death, Died, MortalService, Refused
from tests.support.simulated_worker import CLUSTER, FINGERPRINT, PROFILE, SPEC, measurement, speed_of

LONG = os.environ.get("SHARDTUNE_TEST_LONG") == "1"
STUDY = SPEC | {"cluster": CLUSTER.model_dump(), "budget": {"max_trials": 3, "max_pairs": 7}}
INVENTORY = Inventory(cluster=CLUSTER, fingerprint=FINGERPRINT).model_dump(mode="json")
SETTINGS = {"lease_s": 20.0}
SILENT_S = 21.0


class Life:
    """One study from its creation to its end, with at most one death of the service."""

    def __init__(self, url, at=None, death=None):
        self.service, self.at, self.death = MortalService(url, **SETTINGS), at, death
        self.commits, self.applied, self.deaths = [], Counter(), 0

    def ask(self, rule, *arguments):
        death = self.death if len(self.commits) == self.at else None
        try:
            answer = self.service.ask(rule, *arguments, death=death)
        except Died:
            self.deaths += 1
            answer = self.service.ask(rule, *arguments)
        self.commits.append(self.service.commits)
        return answer

    def live(self):
        first, second = self.register("one", 1), self.register("two", 2)
        self.create()
        self.work(first)
        slow, lost = self.lease(first), self.lease(second)
        self.ask("heartbeat", slow.run_id, self.body(first, attempt=slow.attempt))
        self.report(first, slow)
        self.service.later_s = SILENT_S
        self.ask("sweep")
        assert self.lease(first).run_id == lost.run_id
        self.work(first)
        assert self.lease(first) is not None
        restarted = self.register("one", 3)
        while self.work(restarted):
            pass
        self.service.close()

    def create(self):
        try:
            self.ask("create", STUDY, "crashing")
        except Refused as error:
            # Created before the service died: the id of one's own choice tells.
            assert str(error) == "study_exists" and self.deaths
            self.commits.append(0)

    def register(self, name, life):
        session = f"session-{life:08}"
        self.ask("register", self.body(session, name=name, inventory=INVENTORY))
        return session

    def lease(self, session):
        return self.ask("lease", self.body(session))

    def work(self, session):
        lease = self.lease(session)
        if lease is not None:
            self.report(session, lease)
        return lease

    def report(self, session, lease):
        is_profile = lease.task.kind == "profile"
        outcome = {"profile": PROFILE} if is_profile else {"measurement": measurement(speed_of(lease.task.config))}
        body = self.body(session, attempt=lease.attempt, gpu_seconds=2.0, **outcome)
        if self.ask("report", lease.run_id, body).applied:
            self.applied[lease.run_id, lease.attempt] += 1

    def body(self, session, **fields):
        return {"protocol_version": PROTOCOL_VERSION, "session": session} | fields


def story(url, applied):
    """What a study's life left behind, without names and times of its own; every fault of it."""
    database = Database(url)
    try:
        with database.read() as session:
            study = session.scalars(select(StudyRow)).one()
            trials = session.scalars(select(TrialRow).order_by(TrialRow.number)).all()
            runs = session.scalars(select(RunRow).order_by(RunRow.position)).all()
            events = session.scalars(select(EventRow.type).order_by(EventRow.number)).all()
            told = (
                (study.state, study.phase, study.reason, study.result),
                [(trial.number, trial.config_key, trial.state) for trial in trials],
                [(run.purpose, run.block, run.state, [attempt.end for attempt in run.attempts]) for run in runs],
                list(events),
            )
        return told, history.faults(database, applied)
    finally:
        database.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def new_url(request, tmp_path):
    """Makes one migrated database after another, each in the place of the last."""
    if request.param == "sqlite":
        template, path = request.getfixturevalue("sqlite_template"), tmp_path / "crashing.sqlite3"

        def copy():
            for file in tmp_path.glob("crashing*"):
                file.unlink()
            shutil.copy(template, path)
            return f"sqlite:///{path}"

        return copy
    server, template = request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_template")
    engine = create_engine(server.format(name="postgres"), poolclass=NullPool, isolation_level="AUTOCOMMIT")

    def create():
        with engine.connect() as connection:
            connection.execute(text("DROP DATABASE IF EXISTS crashing WITH (FORCE)"))
            connection.execute(text(f"CREATE DATABASE crashing TEMPLATE {template}"))
        return server.format(name="crashing")

    return create


def points(commits):
    """Every commit of the life, or those of its beginning and of its end."""
    asked = range(len(commits))
    chosen = asked if LONG else [*asked[:22], *asked[-3:]]
    for at, side in itertools.product(chosen, ("before", "after")):
        for commit in range(1, commits[at] + 1):
            yield at, Death(commit, side)


@pytest.mark.timeout(1800 if LONG else 300)
def test_service_killed_at_any_commit_loses_and_doubles_nothing(new_url):
    url = new_url()
    undisturbed = Life(url)
    undisturbed.live()
    expected, faults = story(url, undisturbed.applied)
    assert (expected[0][0], faults) == ("complete", [])
    chosen = list(points(undisturbed.commits))
    for at, death in chosen if LONG else chosen[::3] if url.startswith("sqlite") else chosen[1::5]:
        url = new_url()
        life = Life(url, at, death)
        life.live()
        assert life.deaths == 1, (at, death)
        assert (at, death, *story(url, life.applied)) == (at, death, expected, [])
