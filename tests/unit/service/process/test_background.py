"""What runs beside the requests outlives whatever a single step meets."""

import asyncio

from shardtune.service.process.background import run_every


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
