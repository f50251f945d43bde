"""A worker with `--exit-when-idle` ends by itself, after its results were accepted, and says whether the service answered."""

import itertools

import pytest

from shardtune.workers.agent.client_errors import Unreachable
from shardtune.workers.agent.idle_limit import IdleLimit
from tests.support.workers.agent_world import CONTINUE, REGISTERED, World

IDLE_MINUTES = 0.02
STOP = (200, {"action": "stop", "reason": "cancelled", "lease_s": 20})


@pytest.fixture
def idle_world(tmp_path, warm, task):
    """Makes a world whose worker ends after 1.2 s without a run; returns it before the worker runs."""
    created = []

    def make(*acts, has_run=True, **answers):
        world = World(tmp_path, warm(*acts), task, lambda world: False, idle_minutes=IDLE_MINUTES, **answers)
        if not has_run:
            world.leases.clear()
        created.append(world)
        return world

    yield make
    for world in created:
        world.service.close()


def test_a_limit_counts_from_the_end_of_the_last_run():
    times = itertools.chain([0.0, 59.0, 60.0], itertools.repeat(61.0))
    limit = IdleLimit(1, clock=lambda: next(times))
    assert [limit.is_over, limit.is_over] == [False, True]
    limit.restart()
    assert not limit.is_over


def test_without_a_limit_a_worker_waits_for_ever():
    assert not IdleLimit(None, clock=itertools.count(0, 1e9).__next__).is_over


def test_an_idle_worker_ends_after_its_results_were_accepted(idle_world):
    later = (503, {"detail": "restarting"})
    world = idle_world("complete", "complete", report=[later, (200, {"applied": True})])
    world.agent.run()
    assert [report.measurement is not None for report in world.reports()] == [True, True]
    assert world.service.requests[-1][0].endswith("/leases"), "it asked for work until its end"


def test_a_service_that_accepts_no_result_ends_such_a_worker_as_a_failure(idle_world):
    world = idle_world("complete", "complete", report=(503, {"detail": "down"}))
    with pytest.raises(Unreachable, match=r"service \(http.*\) did not accept the result of run r1"):
        world.agent.run()


def test_a_worker_that_never_gets_a_run_ends(idle_world, caplog):
    caplog.set_level("INFO")
    idle_world(has_run=False).agent.run()
    assert "no run for 0.02 minutes: the worker ends" in caplog.text


def test_a_run_that_takes_longer_than_the_limit_is_finished(idle_world):
    world = idle_world("busy", "busy", heartbeat=[CONTINUE] * 25 + [STOP])
    world.agent.run()
    assert len(world.service.bodies("/heartbeat")) == 26


@pytest.mark.parametrize("kind", ["workers", "leases"])
def test_a_service_that_stays_away_ends_an_idle_worker_as_a_failure(kind, idle_world):
    away = (503, {"detail": "down"})
    world = idle_world(has_run=False, readyz=away, workers=away if kind == "workers" else (200, REGISTERED))
    world.leases[:] = [away] * 1000
    with pytest.raises(Unreachable, match=r"service \(http.*\) does not answer, and no run for 0.02 minutes"):
        world.agent.run()


def test_a_lease_whose_response_was_lost_is_asked_for_again_however_late_it_is(idle_world):
    world = idle_world("complete", "complete")
    lost = (503, {"detail": "the response was lost"})
    world.agent._idle.minutes = 0.0  # over from the first moment
    world.leases[:] = [*world.leases, lost]
    world.agent.run()
    assert [report.measurement is not None for report in world.reports()] == [True]


def test_a_ready_service_that_answers_no_lease_request_ends_an_idle_worker_as_a_failure(idle_world):
    world = idle_world(has_run=False)
    world.leases[:] = [(503, {"detail": "down"})] * 100_000
    with pytest.raises(Unreachable, match=r"service \(http.*\) does not answer, and no run for 0.02 minutes"):
        world.agent.run()
    assert len(world.service.bodies("/leases")) < 10, "pauses between the questions"


@pytest.mark.parametrize("looks_again", [False, True], ids=["session lost", "inventory changed"])
def test_a_registration_that_is_not_answered_ends_an_idle_worker_as_a_failure(looks_again, idle_world):
    away = (503, {"detail": "down"})
    changed = {"look": lambda fingerprint: fingerprint.model_copy(update={"driver": "new"})} if looks_again else {}
    world = idle_world(has_run=False, workers=[(200, REGISTERED), *[away] * 1000], **changed)
    world.leases[:] = [] if looks_again else [(410, {"detail": "unknown session"})]
    with pytest.raises(Unreachable, match="does not answer, and no run for"):
        world.agent.run()


def test_a_service_that_comes_back_within_the_limit_is_asked_again(idle_world):
    away = (503, {"detail": "down"})
    world = idle_world(has_run=False, readyz=[away, (200, {})])
    world.leases[:] = [away]
    world.agent.run()
    assert len(world.service.bodies("/leases")) > 1
