"""The loop that ends lost attempts goes on, whatever it cannot end."""

import asyncio
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import OperationalError

from shardtune.service.canaries import judge
from shardtune.service.leasing import reclaim


def taken_until(rounds, monkeypatch, catch_up_error, sweep_error=None):
    """Names of what the loop did until it had taken so many steps."""
    taken, done = [], asyncio.Event()

    def take(name, error):
        def step(_context):
            taken.append(name)
            if len(taken) >= rounds:
                loop.call_soon_threadsafe(done.set)
            if error is not None:
                raise error

        return step

    monkeypatch.setattr(reclaim.advance, "catch_up", take("catch up", catch_up_error))
    monkeypatch.setattr(reclaim.expiry, "sweep", take("expired", sweep_error))
    monkeypatch.setattr(reclaim, "end_overdue_attempts", take("overdue", None))

    async def run():
        nonlocal loop
        loop = asyncio.get_running_loop()
        sweeping = asyncio.create_task(reclaim.keep_sweeping(SimpleNamespace(settings=SimpleNamespace(sweep_s=0))))
        await asyncio.wait_for(done.wait(), 30)
        sweeping.cancel()

    loop = None
    asyncio.run(run())
    return taken[:rounds]


def test_a_study_that_fails_in_the_catch_up_keeps_no_lease_from_its_end(monkeypatch):
    """The catch-up was repeated for ever, and no lost run of any study was retried."""
    unreadable = ValueError("a row cannot be read")
    assert taken_until(3, monkeypatch, unreadable) == ["catch up", "expired", "overdue"]


def test_a_database_that_is_away_at_the_start_does_not_lose_the_catch_up(monkeypatch):
    away = OperationalError("SELECT 1", {}, Exception("connection refused"))
    assert taken_until(3, monkeypatch, away) == ["catch up"] * 3


def test_an_attempt_that_cannot_be_ended_keeps_no_deadline_from_its_end(monkeypatch):
    assert taken_until(3, monkeypatch, None, ValueError("a row cannot be read")) == ["catch up", "expired", "overdue"]


def test_a_canary_that_cannot_be_judged_keeps_no_other_from_its_start(monkeypatch):
    begun = []

    class Reading:
        def __enter__(self):
            return None

        def __exit__(self, *_):
            return None

    def judge_unreadable(*_):
        raise ValueError("a row cannot be read")

    monkeypatch.setattr(judge.canaries, "open_canaries", lambda _: [SimpleNamespace(id="canary-1", study_id="study-1")])
    monkeypatch.setattr(judge, "_judge", judge_unreadable)
    monkeypatch.setattr(judge.send, "watched_targets", lambda *_: [("default", "target-1")])
    monkeypatch.setattr(judge.send, "begin_if_due", lambda _context, *case: begun.append(case) or True)
    with pytest.raises(ValueError, match="cannot be read"):
        judge.judge_and_begin(SimpleNamespace(db=SimpleNamespace(read=Reading)))
    assert begun == [("default", "target-1")]
