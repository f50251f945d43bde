"""Background tasks survive the failure of a single step."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.exc import InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shardtune.db.limits import DatabaseLimits
from shardtune.db.session import Database
from shardtune.service.process.background import run_every, sum_unlocked


def test_a_step_that_breaks_ends_neither_the_others_nor_the_loop(caplog):
    taken = []
    done = asyncio.Event()

    async def broken():
        raise RuntimeError("the database is away")

    async def sound():
        taken.append("step")
        if len(taken) == 3:
            done.set()

    async def run():
        loop = asyncio.create_task(run_every(0, looking_for_work=broken, telling=sound))
        await done.wait()
        loop.cancel()

    asyncio.run(run())
    assert taken == ["step"] * 3
    assert {record.message for record in caplog.records} == {"looking for work failed; trying again"}


def test_the_first_step_waits_for_the_first_pause_unless_asked_not_to():
    async def steps(at_once):
        taken = []

        async def step():
            taken.append("step")

        loop = asyncio.create_task(run_every(3600, at_once=at_once, step=step))
        for _ in range(5):
            await asyncio.sleep(0)
        loop.cancel()
        return taken

    assert asyncio.run(steps(at_once=False)) == []
    assert asyncio.run(steps(at_once=True)) == ["step"]


def test_an_item_whose_step_fails_keeps_no_other_waiting(caplog):
    attempt = []

    def step(item):
        attempt.append(item)
        if item != 3:
            raise ValueError(f"row {item} cannot be read")
        return 1

    with pytest.raises(ValueError, match="row 1 cannot be read"):
        sum_unlocked([1, 2, 3], step, lambda item: f"study-{item}")
    assert attempt == [1, 2, 3]
    assert [record.message for record in caplog.records] == ["a step failed: study-1", "a step failed: study-2"]


@pytest.mark.parametrize("outage", [InterfaceError("SELECT 1", {}, Exception("closed")), PoolTimeout("no connection")])
def test_an_outage_of_the_database_leaves_the_other_items_for_the_next_round(outage, caplog):
    """Each item waited for a connection again."""
    attempt = []

    def step(item):
        attempt.append(item)
        raise outage

    with pytest.raises(type(outage)):
        sum_unlocked([1, 2], step, str)
    assert attempt == [1] and not caplog.records


@pytest.mark.postgres
def test_what_another_holds_is_passed_over_and_the_rest_done(empty_postgres_url, caplog):
    limits = DatabaseLimits(lock_s=0.1)
    holder, ours = Database(empty_postgres_url), Database(empty_postgres_url, limits)
    attempt = []

    def step(item):
        attempt.append(item)
        with ours.write() as session:
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": item[0]})
        return True

    with holder.write() as session:
        session.execute(text("SELECT pg_advisory_xact_lock(2)"))
        assert sum_unlocked([(1, "a"), (2, "a"), (2, "b"), (3, "a")], step, lambda item: f"study-{item[0]}") == 2
    assert attempt == [(1, "a"), (2, "a"), (3, "a")], "of what is held nothing more is tried in this round"
    assert ["study-2" in record.message for record in caplog.records] == [True]
    for database in (holder, ours):
        database.close()
