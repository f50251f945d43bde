"""Whose request is handled next."""

import asyncio

from shardtune.service.process.turns import Turns


async def _waiting(turns: Turns, sender: str, order: list[str]) -> None:
    await turns.take(sender)
    order.append(sender)


def test_a_place_that_gets_free_goes_to_who_has_the_fewest():
    async def story() -> list[str]:
        turns, order = Turns(at_once=2, of_one_sender=2), []
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
        turns, order = Turns(at_once=4, of_one_sender=2), []
        many = [asyncio.create_task(_waiting(turns, "many", order)) for _ in range(8)]
        await asyncio.sleep(0)
        await asyncio.wait_for(_waiting(turns, "few", order), 5)
        assert order == ["many", "many", "few"]
        for task in many:
            task.cancel()

    asyncio.run(story())


def test_who_leaves_while_waiting_takes_no_place():
    async def story() -> None:
        turns, order = Turns(at_once=1, of_one_sender=1), []
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
