"""Budget of bytes in memory: one sender gets half, and there is always room for the next."""

import random

from shardtune.service.process.byte_budget import ByteBudget


def fill(budget: ByteBudget, sender: str, piece: int) -> int:
    while budget.has_room(sender, piece):
        budget.take(sender, piece)
    return budget.held(sender)


def test_a_sender_alone_gets_half_and_the_next_ones_ever_less():
    budget = ByteBudget(1000)
    assert [fill(budget, name, 1) for name in "abc"] == [500, 250, 125]
    assert budget.has_room("d", 1)


def test_what_is_released_is_free_again():
    budget = ByteBudget(1000)
    fill(budget, "a", 100)
    assert not budget.has_room("a", 100)
    budget.release("a", 100)
    assert budget.has_room("a", 100) and not budget.has_room("a", 200)


def test_bytes_that_exist_count_even_without_room():
    budget = ByteBudget(1000)
    budget.take("a", 900)
    assert not budget.has_room("a", 0) and budget.has_room("b", 50) and not budget.has_room("b", 51)
    budget.release("a", 900)
    assert budget.has_room("a", 500) and budget.held("a") == 0


def test_senders_that_ask_never_hold_more_than_the_limit():
    chooser, budget = random.Random(0), ByteBudget(10_000)
    for _ in range(5000):
        sender, size = str(chooser.randrange(50)), chooser.randrange(2000)
        if budget.has_room(sender, size):
            budget.take(sender, size)
        assert sum(budget.held(str(number)) for number in range(50)) <= 10_000
