"""Schedules for drift: canaries at times of their own."""

import pytest

from shardtune.service.canaries import judge, send
from shardtune.service.process.context import Context
from shardtune.service.schedules import ticks
from tests.flow.helpers.fleet import DAY_S, Fleet
from tests.flow.helpers.retuning_lab import CHANGED
from tests.flow.schedules.schedule_calls import act, make, read, retunes
from tests.support.service.scenarios import best


def canary_tick(fleet, schedule):
    """The next tick of a schedule, and all that follows."""
    fleet.clock.turn(DAY_S)
    for worker in fleet.workers:
        worker.register()
    assert ticks.account_for_due(fleet.context) == 1
    for _ in range(3):
        fleet.work()
        judge.judge_and_begin(fleet.context)
    tick = read(fleet.client, schedule)["last_ticks"][0]
    return tick["state"], tick["targets"], tick["reason"]


@pytest.mark.answered(worker="sim-0")
@pytest.mark.wide_on_postgres
def test_a_drift_schedule_sends_canaries_at_its_times_and_has_what_is_slow_retuned(client, clock):
    fleet = Fleet(client, clock)
    drift = make(client, trigger="drift", cron="0 0 * * *")
    assert canary_tick(fleet, drift) == ("started", 1, None) and fleet.runs() == [1.0]
    fleet.everybody_is(0.8)
    assert canary_tick(fleet, drift) == ("started", 1, None)
    (requested,) = retunes(client, schedule_id=drift["schedule_id"])
    assert requested["cause"] == "drift"
    state, _, reason = canary_tick(fleet, drift)
    assert state == "skipped" and "have not ended" in reason


@pytest.mark.answered(worker="sim-0")
def test_a_drift_schedule_says_why_it_sends_no_canary(quick_client, clock):
    fleet = Fleet(quick_client, clock)
    drift = make(quick_client, trigger="drift", cron="0 0 * * *")
    fleet.join(CHANGED)
    state, _, reason = canary_tick(fleet, drift)
    assert state == "skipped" and reason == (
        "no canary for 1 of 1 targets: no live worker has the fingerprint it was measured on (1)"
    )


@pytest.mark.answered(worker="sim-0")
@pytest.mark.wide_on_postgres
def test_the_setting_is_for_targets_without_a_drift_schedule_that_has_times(client, clock):
    fleet = Fleet(client, clock)
    context, key = fleet.context, best(client)["target_key"]
    daily = Context(context.db, context.settings.model_copy(update={"canary_period_s": float(DAY_S)}), clock)

    def periods():
        with context.db.read() as session:
            return [send.watched_targets(item, session) for item in (context, daily)]

    assert periods() == [[], [("default", key, DAY_S)]]
    make(client, trigger="drift", cron=None)
    assert periods() == [[], [("default", key, DAY_S)]]
    drift = make(client, trigger="drift", targets={"target_keys": [key]})
    assert periods() == [[("default", key, None)]] * 2
    act(client, drift, "pause")
    assert periods() == [[], []]
