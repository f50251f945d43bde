"""A service's life over HTTP once for every commit in it, with the service killed before or after that commit.

A webhook, a study from its creation to its answer, a schedule that is run by hand and the retune it asks for, each named by
an `Idempotency-Key`. Whoever got no answer asks a new process the same again, as clients and workers do. In the end the
history must be that of the undisturbed life. SHARDTUNE_TEST_LONG=1 has every commit, else one of each kind of step, alternately on SQLite and Postgres.
"""

import itertools
import os
import shutil
from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.pool import NullPool

from shardtune.api_schemas.machines.hardware import Inventory
from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.trials.leases import Lease
from shardtune.db.session import Database
from shardtune.db.tables.events import EventRow
from shardtune.db.tables.retunes import RetuneRow, ScheduleTickRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow, TrialRow
from shardtune.db.tables.webhooks import DeliveryRow
from tests.flow.leasing.crashing_service import Death, Died, MortalService
from tests.support.service import run_history
from tests.support.service.simulated_worker import (
    CLUSTER,
    FINGERPRINT,
    MODEL_SUMMARY,
    SPEC,
    measurement,
    on_quiet_machine,
    speed_of,
)
from tests.support.service.webhook_receivers import receiver

LONG = os.environ.get("SHARDTUNE_TEST_LONG") == "1"
STUDY = SPEC | {"cluster": CLUSTER.model_dump(), "budget": {"max_trials": 2, "max_pairs": 7}}
STUDY |= {"baseline": {"strategy": {"kind": "ddp"}, "micro_batch": 1}}
"""One candidate and one baseline: no runs that find out which default is the baseline."""
INVENTORY = Inventory(cluster=CLUSTER, fingerprint=FINGERPRINT).model_dump(mode="json")
SETTINGS = {"lease_s": 20.0, "worker_live_s": 3600, "secret_key": "k" * 32, "webhook_allow_private": True}
REPORTED = ["study.created", "study.complete", "best.renewed"]
SILENT_S = 21.0
CLAIMED_S = 61.0
"""Seconds after which a process that was killed while it held a message or a retune is replaced."""
_ROUNDS = 4
"""A retune is begun, linked to its challenge and judged in two; each death takes one more."""


class Life:
    """One life of a study from the first request to the last, with at most one death of the service."""

    def __init__(self, url, hook, at=None, death=None):
        self.service, self.hook, self.at, self.death = MortalService(url, **SETTINGS), hook, at, death
        self.commits, self.kinds, self.applied, self.deaths = [], [], Counter(), 0
        self.known, self.is_retuned = [], False

    def ask(self, rule, *arguments):
        death = self.death if len(self.commits) == self.at else None
        try:
            answer = self.service.ask(rule, *arguments, death=death)
        except Died:
            self.deaths += 1
            self.service.later_s += 0 if rule == "http" else CLAIMED_S
            answer = self.service.ask(rule, *arguments)
        self.commits.append(self.service.commits)
        self.kinds.append(f"{rule} {arguments[1].rpartition('/')[2] if arguments else ''}")
        return answer

    def post(self, path, body=None, name=None, **params):
        headers = {"Idempotency-Key": name} if name else {}
        status, answer = self.ask("http", "POST", path, {"json": body, "headers": headers, "params": params})
        assert status in (200, 201, 204), (path, answer)
        return answer

    def live(self):
        self.post("/v1/webhooks", {"url": self.hook, "events": REPORTED}, name="hook")
        first, second = self.register("one"), self.register("two")
        self.post("/v1/studies", STUDY, name="study", study_id="crashing")
        self.work(first)
        slow, lost = self.lease(first), self.lease(second)
        self.post(f"/v1/runs/{slow.run_id}/heartbeat", self.body(first, attempt=slow.attempt))
        self.report(first, slow)
        self.service.later_s += SILENT_S
        self.ask("sweep")
        assert self.lease(first).run_id == lost.run_id
        self.work(first)
        assert self.lease(first) is not None
        restarted = self.register("one")
        while self.work(restarted):
            pass
        self.retune(restarted)
        while self.ask("deliver"):
            pass
        self.service.close()

    def retune(self, session):
        post = self.post("/v1/schedules", {"name": "by hand", "trigger": "manual"}, name="schedule")
        self.post(f"/v1/schedules/{post['schedule_id']}:run", name="tick")
        self.is_retuned = True
        # As the service's loop does: what a death left undone is done in the next round.
        for _ in range(_ROUNDS):
            self.ask("start retunes")
            self.ask("drive retunes")
            while self.work(session):
                pass

    def register(self, name):
        return self.post("/v1/workers", self.body(None, name=name, inventory=INVENTORY))["session"]

    def lease(self, session):
        answer = self.post("/v1/leases", self.body(session, wait_s=0))
        return Lease.model_validate(answer) if answer is not None else None

    def work(self, session):
        lease = self.lease(session)
        if lease is not None:
            self.report(session, lease)
        return lease

    def report(self, session, lease):
        is_profile = lease.task.kind == "model_summary"
        # In the retune nothing new is fast: its challenge keeps what is served.
        outcome = MODEL_SUMMARY if is_profile else on_quiet_machine(measurement(self.speed(lease.task.config)))
        named = {"model_summary" if is_profile else "measurement": outcome.model_dump(mode="json")}
        body = self.body(session, attempt=lease.attempt, gpu_seconds=2.0, **named)
        if self.post(f"/v1/runs/{lease.run_id}/report", body)["applied"]:
            self.applied[lease.run_id, lease.attempt] += 1

    def speed(self, config):
        if self.is_retuned and config not in self.known:
            return 100.0
        self.known.append(config)
        return speed_of(config)

    def body(self, session, **fields):
        return {"protocol_version": PROTOCOL_VERSION, "session": session} | fields


def story(url, applied):
    """Rows that a life left behind, without its own names and times; every fault of it."""
    database = Database(url)
    try:
        with database.read() as session:
            studies = session.scalars(select(StudyRow).order_by(StudyRow.created_at)).all()
            reported = [one_study(session, study) for study in studies]
            retunes = [(row.state, row.cause, row.outcome) for row in session.scalars(select(RetuneRow))]
            ticks = [(row.state, row.targets) for row in session.scalars(select(ScheduleTickRow))]
            sent = Counter((row.type, row.state) for row in session.scalars(select(DeliveryRow)))
            return (reported, retunes, ticks, sent), run_history.faults(database, applied)
    finally:
        database.close()


def one_study(session, study):
    trials = session.scalars(select(TrialRow).where(TrialRow.study_id == study.id).order_by(TrialRow.number))
    runs = session.scalars(select(RunRow).where(RunRow.study_id == study.id).order_by(RunRow.position))
    events = session.scalars(select(EventRow.type).where(EventRow.study_id == study.id).order_by(EventRow.number))
    return (
        (study.state, study.phase, study.reason, study.result),
        [(trial.number, trial.config_key, trial.state) for trial in trials],
        [(run.purpose, run.comparison_block, run.state, [attempt.end for attempt in run.attempts]) for run in runs],
        list(events),
    )


@pytest.fixture(scope="module")
def hook() -> Iterator[str]:
    """A receiver that takes whatever it is sent."""
    with receiver() as url:
        yield url


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


def points(life):
    """Every commit of the life, or one of each kind of step: the first, killed before and after it in turn."""
    if LONG:
        for at, side in itertools.product(range(len(life.commits)), ("before", "after")):
            for commit in range(1, life.commits[at] + 1):
                yield at, Death(commit, side)
        return
    firsts = {kind: at for at, kind in reversed(list(enumerate(life.kinds))) if life.commits[at]}
    for at, side in zip(sorted(firsts.values()), itertools.cycle(("before", "before", "after", "after")), strict=False):
        yield at, Death(life.commits[at], side)


@pytest.mark.timeout(7200 if LONG else 300)
def test_service_killed_at_any_commit_loses_and_doubles_nothing(new_url, hook):
    url = new_url()
    undisturbed = Life(url, hook)
    undisturbed.live()
    expected, faults = story(url, undisturbed.applied)
    assert ([reported[0][0] for reported in expected[0]], faults) == (["complete", "complete"], [])
    assert expected[1] == [("ended", "manual", "kept")] and sum(expected[3].values()) == 5
    chosen = list(points(undisturbed))
    for at, death in chosen if LONG else chosen[url.startswith("sqlite") :: 2]:
        url = new_url()
        life = Life(url, hook, at, death)
        life.live()
        where = (at, undisturbed.kinds[at], death)
        assert life.deaths == 1, where
        assert (where, *story(url, life.applied)) == (where, expected, [])
