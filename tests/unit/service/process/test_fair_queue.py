"""Order in which requests are handled."""

import asyncio

from shardtune.service.process.fair_queue import FairQueue


async def _waiting(turns: FairQueue, sender: str, order: list[str]) -> None:
    await turns.take(sender)
    order.append(sender)


def test_a_place_that_gets_free_goes_to_who_has_the_fewest():
    async def story() -> list[str]:
        turns, order = FairQueue(at_once=2, of_one_sender=2), []
        many = [asyncio.create_task(_waiting(turns, "many", order)) for _ in range(6)]
        await asyncio.sleep(0)
        few = [asyncio.create_task(_waiting(turns, "few", order)) for _ in range(2)]
        await asyncio.sleep(0)
        assert order == ["many", "many"]
        for sender in ("many", "many", "few", "many", "few", "many", "many", "many"):
            turns.release(sender)
            await asyncio.sleep(0)
        await asyncio.gather(*many, *few)
        return order

    assert asyncio.run(story()) == ["many", "many", "few", "many", "few", "many", "many", "many"]


def test_one_sender_never_has_every_place():
    async def story() -> None:
        turns, order = FairQueue(at_once=4, of_one_sender=2), []
        many = [asyncio.create_task(_waiting(turns, "many", order)) for _ in range(8)]
        await asyncio.sleep(0)
        await asyncio.wait_for(_waiting(turns, "few", order), 5)
        assert order == ["many", "many", "few"]
        for task in many:
            task.cancel()

    asyncio.run(story())


def test_who_leaves_while_waiting_takes_no_place():
    async def story() -> None:
        turns, order = FairQueue(at_once=1, of_one_sender=1), []
        await turns.take("first")
        gone = asyncio.create_task(_waiting(turns, "gone", order))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        late = asyncio.create_task(_waiting(turns, "late", order))
        await asyncio.sleep(0)
        turns.release("first")
        dropped = asyncio.create_task(_waiting(turns, "dropped", order))
        # Cancelled in the moment between the handing out and the waking.
        await late
        turns.release("late")
        dropped.cancel()
        await asyncio.gather(dropped, return_exceptions=True)
        await asyncio.wait_for(turns.take("last"), 5)
        assert order == ["late"]

    asyncio.run(story())


async def _granted(turns: FairQueue, sender: str, count: int) -> int:
    """Number of requests granted at once; all slots are released afterwards."""
    order: list[str] = []
    wishes = [asyncio.create_task(_waiting(turns, sender, order)) for _ in range(count)]
    await asyncio.sleep(0)
    granted = len(order)
    for _ in range(granted):
        turns.release(sender)
    for task in wishes:
        task.cancel()
    await asyncio.gather(*wishes, return_exceptions=True)
    return granted


def test_who_had_more_than_half_of_the_time_has_one_place_while_others_come():
    clock = [0.0]

    async def had(turns: FairQueue, sender: str, seconds: float) -> None:
        async with turns.slot(sender):
            clock[0] += seconds

    async def story() -> None:
        turns = FairQueue(at_once=8, of_one_sender=4, clock=lambda: clock[0])
        await had(turns, "much", 1.0)
        assert await _granted(turns, "much", 6) == 4, "nobody else is there"
        await had(turns, "little", 0.2)
        assert await _granted(turns, "much", 6) == 1
        assert await _granted(turns, "little", 6) == 4
        await had(turns, "little", 1.0)
        assert await _granted(turns, "much", 6) == 4, "the other had as much"
        clock[0] += 3600
        await had(turns, "little", 0.01)
        assert await _granted(turns, "much", 6) == 4, "what was had an hour ago counts for nothing"

    asyncio.run(story())
