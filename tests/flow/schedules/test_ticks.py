"""Hundreds of ticks, four replicas on one Postgres, both days the clocks change, a day of downtime: each tick once."""

import threading
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import inspect, select

from shardtune.api_schemas.retuning.retunes import RetuneOutcome, RetuneState
from shardtune.api_schemas.retuning.schedules import ScheduleSpec
from shardtune.db.queries import keys
from shardtune.db.session import Database
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.retunes import RetuneRow, ScheduleTickRow
from shardtune.service.app import create_app
from shardtune.service.process.context import Context
from shardtune.service.retuning import records
from shardtune.service.schedules import manage, ticks
from shardtune.service.settings import Settings
from tests.flow.helpers.manual_clock import Clock
from tests.support.long_run import IS_LONG
from tests.support.service.local_client import local_client
from tests.support.service.scenarios import best

BERLIN = ZoneInfo("Europe/Berlin")
STEP = timedelta(minutes=15)
QUIET_MINUTE = 45
"""Moment of no schedule, at which no tick is due."""
SPECS = {
    "half-hourly": {"cron": "*/30 * * * *", "catch_up": "one"},
    "hourly": {"cron": "15 * * * *", "catch_up": "all", "overlap": "queue", "catch_up_limit": 3},
    "nightly": {"cron": "30 2 * * *", "catch_up": "none"},
}
BEFORE, AFTERWARDS = (2, 3) if IS_LONG else (1, 1)
"""Days before the clocks change, and full days after it."""
SEASONS = {
    # First moment, then when the replicas go down for a day; the clocks change between them.
    "spring": (
        datetime(2026, 3, 29 - BEFORE, tzinfo=BERLIN),
        datetime(2026, 3, 29, 12, tzinfo=BERLIN) + timedelta(days=AFTERWARDS),
    ),
    "autumn": (
        datetime(2026, 10, 25 - BEFORE, tzinfo=BERLIN),
        datetime(2026, 10, 25, 12, tzinfo=BERLIN) + timedelta(days=AFTERWARDS),
    ),
}
DOWN = timedelta(days=1)
AFTER = timedelta(hours=18)


def expected(name, begin, end):
    """The ticks in (begin, end], by walking through every minute that elapses: no cron library."""
    minutes = [begin + timedelta(minutes=m) for m in range(1, int((end - begin).total_seconds()) // 60 + 1)]
    local = [(moment, moment.astimezone(BERLIN)) for moment in minutes]
    match name:
        case "half-hourly":
            return [moment for moment, at in local if at.minute in (0, 30)]
        case "hourly":
            return [moment for moment, at in local if at.minute == 15]
        case "nightly":
            # The gap on 29 March moves it to 03:00; on 25 October the second 02:30 is none.
            spring = [m for m, at in local if (at.month, at.day, at.hour, at.minute) == (3, 29, 3, 0)]
            usual = [m for m, at in local if (at.hour, at.minute, at.fold) == (2, 30, 0)]
            return sorted(spring + usual)


class Replicas:
    """Four services on one database that look for ticks at the same moments."""

    def __init__(self, url, clock):
        self.contexts = [Context(Database(url), Settings(database_url=url), clock) for _ in range(4)]
        self.errors = []
        self._barrier = threading.Barrier(len(self.contexts) + 1)
        self._threads = [threading.Thread(target=self._serve, args=(context,)) for context in self.contexts]
        self._done = False

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._done = True
        self._barrier.wait()
        for thread in self._threads:
            thread.join()
        for context in self.contexts:
            context.db.close()

    def look(self):
        self._barrier.wait()
        self._barrier.wait()

    def _serve(self, context):
        while True:
            self._barrier.wait()
            if self._done:
                return
            try:
                ticks.account_for_due(context)
                ticks.start_queued(context)
            except Exception as error:  # noqa: BLE001 (a thread's error is the test's)
                self.errors.append(error)
            self._barrier.wait()


def end_retunes(context):
    """Finish the requested retunes before the next tick."""
    with context.db.write() as session:
        for row in session.scalars(select(RetuneRow).where(RetuneRow.state == RetuneState.QUEUED)):
            records.end_retune(context, session, row, RetuneOutcome.KEPT, "kept")


@pytest.fixture
def replicas(database_url):
    """Projects with a recommendation and a schedule each, and four services that know of them."""
    clock = Clock()
    clock.moment = SEASONS["spring"][0].astimezone(UTC)
    context = Context(Database(database_url), Settings(database_url=database_url, sweep_s=3600), clock)
    with local_client(create_app(context=context)) as client:
        served = best(client)
    with Replicas(database_url, clock) as four:
        with four.contexts[0].db.write() as session:
            stored = session.get(TuningTargetRow, ("default", served["target_key"]))
            keys_of_columns = [attribute.key for attribute in inspect(TuningTargetRow).column_attrs]
            copied = {key: getattr(stored, key) for key in keys_of_columns if key != "project_id"}
            for season in SEASONS:
                for name in SPECS:
                    project_id = f"{season}-{name}"
                    keys.put_project(session, project_id, clock())
                    session.add(TuningTargetRow(project_id=project_id, **copied))
        yield four, clock
        assert four.errors == []


def rows_of(context, schedule_id):
    with context.db.read() as session:
        query = select(ScheduleTickRow).where(ScheduleTickRow.schedule_id == schedule_id)
        return list(session.scalars(query.order_by(ScheduleTickRow.at)))


def run_season(four, clock, season):
    """Create the schedules of a season, let the replicas look, be away for a day, and look again."""
    begin, down_at = (moment.astimezone(UTC) for moment in SEASONS[season])
    context = four.contexts[0]
    clock.moment = begin
    created = {
        name: manage.create_schedule(
            context,
            ScheduleSpec(name=name, trigger="cron", timezone="Europe/Berlin", **rules),
            project_id=f"{season}-{name}",
        ).schedule_id
        for name, rules in SPECS.items()
    }
    for stop in (down_at, down_at + DOWN + AFTER):
        while clock.moment < stop:
            four.look()
            end_retunes(context)
            clock.moment += STEP
            if clock.moment.minute == QUIET_MINUTE:
                clock.moment += STEP
        clock.moment = stop + DOWN if stop == down_at else stop
    for _ in range(5):
        four.look()
        end_retunes(context)
    for schedule_id in created.values():
        manage.pause(context, schedule_id, True)
    return created, begin, down_at


@pytest.mark.answered
@pytest.mark.parametrize("database_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_hundreds_of_ticks_each_once(replicas):
    four, clock = replicas
    total = 0
    for season in SEASONS:
        created, begin, down_at = run_season(four, clock, season)
        up_at = down_at + DOWN
        for name, schedule_id in created.items():
            expected_expected = expected(name, begin, up_at + AFTER)
            actual_rows_of = rows_of(four.contexts[0], schedule_id)
            # The last look before the downtime was two steps before it.
            missed = [at for at in expected_expected if down_at - 2 * STEP < at < up_at - timedelta(seconds=300)]
            live = [at for at in expected_expected if at not in missed]
            total += check(name, actual_rows_of, live, missed)
            with four.contexts[0].db.read() as session:
                query = select(RetuneRow.id).where(RetuneRow.schedule_id == schedule_id)
                assert len(session.scalars(query).all()) == sum(row.state == "started" for row in actual_rows_of)
    assert total >= (1000 if IS_LONG else 600)


def check(name, actual, live, missed):
    """Every tick is accounted for once, and the missed ones as their schedule says; returns how many ticks."""
    assert sum(row.merged_ticks for row in actual) == len(live) + len(missed)
    by_time = {row.at: row for row in actual}
    assert len(by_time) == len(actual)
    assert all(by_time[at].state == "started" for at in live)
    made_up = [row for row in actual if row.at in missed]
    first_after = by_time[min(at for at in live if at > missed[-1])]
    match name:
        case "half-hourly":
            # 12:00 is on time when the replicas are back at 12:00, and stands for the missed ones.
            assert made_up == [] and first_after.merged_ticks == len(missed) + 1
        case "hourly":
            assert [row.state for row in made_up] == ["missed", "started", "started", "started"]
            assert [row.merged_ticks for row in made_up] == [len(missed) - 3, 1, 1, 1]
        case "nightly":
            assert [(row.state, row.merged_ticks) for row in made_up] == [("missed", 1)]
    return len(live) + len(missed)
