"""The agent's loop against a service that answers as told and ranks that act as told."""

import logging
import time

import pytest

from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.leases import QuietWait, TraceTask
from shardtune.workers.agent.client_errors import RequestRejected
from shardtune.workers.clock import LeaseClock, now_s
from shardtune.workers.launchers.operators import OperatorBuild
from tests.support.processes.command_line import children_with
from tests.support.processes.stack import until
from tests.support.workers.agent_world import CONTINUE, REGISTERED, World


@pytest.fixture
def world(tmp_path, warm, task):
    created = []

    def make(*acts, until, leased=task, **answers):
        created.append(World(tmp_path, warm(*acts), leased, until, **answers))
        created[-1].agent.run()
        return created[-1]

    yield make
    for world in created:
        world.service.close()


@pytest.fixture
def offloading(task):
    strategy = {"kind": "zero", "stage": 3, "offload_optimizer": {"device": "cpu"}}
    return task.model_copy(update={"config": TrialConfig.model_validate({"strategy": strategy, "micro_batch": 1})})


def lease_requests(times):
    return lambda world: len(world.service.bodies("/leases")) >= times


def beaten(times):
    return lambda world: len(world.service.bodies("/heartbeat")) >= times


def test_a_measured_trial_is_reported_under_its_attempt(world):
    (report,) = world("complete", "complete", until=lease_requests(2)).reports()
    assert report.attempt == 3
    assert report.measurement.step_time_s == pytest.approx(0.12)
    assert report.gpu_seconds == pytest.approx(2 * report.measurement.elapsed_s)
    assert report.log_tail is None


def test_a_failed_trial_is_reported_with_the_end_of_its_log(world):
    (report,) = world("late_crash", "oom", until=lease_requests(2)).reports()
    assert (report.failure.kind, report.failure.rank) == ("oom", 1)
    assert "rank 1 acts oom" in report.log_tail


def test_a_report_is_repeated_until_answered(world):
    later = (503, {"detail": "restarting"})
    reports = world(
        "complete", "complete", until=lease_requests(2), report=[later, later, (200, {"applied": True})]
    ).reports()
    assert len(reports) == 3
    assert reports[0] == reports[2]


def test_a_result_that_the_service_rejects_ends_the_attempt_as_a_failure_that_says_why(world):
    rejected = (422, {"detail": "step_time_s (-1) must be positive"})
    result, reported = world(
        "complete", "complete", until=lease_requests(2), report=[rejected, (200, {"applied": True})]
    ).reports()
    assert result.measurement is not None
    assert (reported.attempt, reported.measurement, reported.failure.kind) == (3, None, "setup")
    assert (
        "the service rejected the result" in reported.failure.message and "step_time_s (-1)" in reported.failure.message
    )


def test_a_worker_of_which_no_report_is_taken_asks_for_no_further_work(world):
    with pytest.raises(RequestRejected, match="no key"):
        world("complete", "complete", until=lease_requests(2), report=(403, {"detail": "no key"}))


def test_told_to_stop_the_ranks_end_and_nothing_is_reported(world):
    stop = (200, {"action": "stop", "reason": "cancelled", "lease_s": 20})
    ended_world = world("busy", "busy", until=lease_requests(2), heartbeat=[CONTINUE, stop])
    assert ended_world.reports() == []
    assert len(ended_world.service.bodies("/heartbeat")) == 2


def test_a_lost_lease_ends_the_ranks_and_reports_nothing(world):
    assert world("busy", "busy", until=lease_requests(2), heartbeat=(409, {"detail": "attempt 4 runs"})).reports() == []


def test_ranks_end_before_a_lease_that_cannot_be_renewed(world):
    ended_world = world("busy", "busy", until=lease_requests(2), heartbeat=(503, {"detail": "down"}), lease_s=1.0)
    assert ended_world.reports() == []


def test_stopped_by_a_signal_the_run_is_released_at_once(world):
    (report,) = world("busy", "busy", until=beaten(2)).reports()
    assert report.failure.kind == "worker_lost"
    assert "SIGTERM" in report.failure.message


def test_the_analysis_of_traces_ends_when_the_worker_is_stopped_and_the_run_is_released(world, task):
    """It went on for minutes, and whoever stopped the worker killed it meanwhile."""
    (report,) = world("trace", "trace", until=is_analysing, leased=TraceTask.of(task)).reports()
    assert (report.failure.kind, report.diagnosis) == ("worker_lost", None)
    assert children_with("shardtune.traces") == []


def test_the_analysis_of_traces_ends_when_the_service_takes_the_run_away(world, task):
    ended = {}

    def until_next_lease(world):
        if is_analysing(world):
            ended["at"] = len(world.service.bodies("/leases"))
            world.answers["heartbeat"] = (200, {"action": "stop", "reason": "cancelled", "lease_s": 20})
        return "at" in ended and len(world.service.bodies("/leases")) > ended["at"]

    assert world("trace", "trace", until=until_next_lease, leased=TraceTask.of(task)).reports() == []
    assert children_with("shardtune.traces") == []


def is_analysing(_world):
    return bool(children_with("shardtune.traces"))


def test_progress_travels_up(world):
    ended_world = world("busy", "busy", until=beaten(4))
    assert ended_world.service.bodies("/heartbeat")[-1]["progress"]["phase"] == "measuring"


def test_an_unknown_session_registers_again_as_a_new_one(world):
    def forget(world):
        if len(world.service.bodies("/leases")) == 2:
            world.leases.append((404, {"detail": "no such worker"}))
        return len(world.service.bodies("/workers")) == 2

    lives = [(200, REGISTERED), (200, REGISTERED | {"session": "session-2"})]
    service = world("complete", "complete", until=forget, workers=lives).service
    first, second = service.bodies("/workers")
    assert first["name"] == second["name"] == "box"
    assert first["session"] is second["session"] is None
    assert service.bodies("/leases")[0]["session"] == "session-1"


def test_two_workers_of_one_name_do_not_fight_for_ever(world):
    def always(world):
        world.leases.append((404, {"detail": "no such session"}))
        return False

    with pytest.raises(RequestRejected, match="--name"):
        world("complete", "complete", until=always)


def test_a_worker_the_service_rejects_ends(world):
    with pytest.raises(RequestRejected, match="protocol"):
        world(
            "complete", "complete", until=lease_requests(1), workers=(422, {"detail": "protocol_version 1 is too old"})
        )


def test_a_lease_counts_from_the_sending_of_what_was_answered():
    clock = LeaseClock(now_s() - 30, lease_s=20)
    assert clock.must_end()
    clock.renew(now_s() - 1, 20)
    assert not clock.must_end()
    clock.renew(now_s() - 18, 20)
    assert clock.must_end()


def test_a_change_between_runs_is_told_under_the_same_session(world):
    changed = []

    def look(observed):
        changed.append(observed.model_copy(update={"power_limit_w": 400.0}))
        return changed[0]

    ended_world = world("complete", "complete", until=lease_requests(4), look=look)
    first, second = ended_world.service.bodies("/workers")
    assert (first["session"], second["session"]) == (None, "session-1")
    assert second["inventory"]["fingerprint"]["power_limit_w"] == 400.0
    assert len(changed) > 1 and len(ended_world.reports()) == 1


def test_heartbeats_go_on_while_a_run_waits_and_its_report_says_how_long(world):
    """No machine is quiet by this limit, since the look itself takes CPU time."""
    order = QuietWait(most_s=1.5, most_foreign_cores=0, waited_s=7)
    ran = world("complete", "complete", until=lease_requests(2), quiet_wait=order)
    (report,) = ran.reports()
    assert report.waited_s == pytest.approx(8.5) and report.measurement is not None
    phases = [(body["progress"] or {}).get("phase") for body in ran.service.bodies("/heartbeat")]
    assert "waiting_for_quiet" in phases
    assert report.gpu_seconds == pytest.approx(2 * report.measurement.elapsed_s), "the wait costs none"


def test_a_wait_ends_when_the_worker_is_stopped_and_the_run_is_released(world):
    order = QuietWait(most_s=3600, most_foreign_cores=0)

    def is_waiting(world):
        beats = [body["progress"] or {} for body in world.service.bodies("/heartbeat")]
        return any(progress.get("phase") == "waiting_for_quiet" for progress in beats)

    (report,) = world("complete", "complete", until=is_waiting, quiet_wait=order).reports()
    assert (report.failure.kind, report.measurement) == ("worker_lost", None)


def test_a_wait_ends_when_the_service_takes_the_run_away(world):
    order = QuietWait(most_s=3600, most_foreign_cores=0)
    stop = (200, {"action": "stop", "reason": "cancelled", "lease_s": 20})
    assert world(until=lease_requests(2), quiet_wait=order, heartbeat=stop).reports() == []


def test_operators_are_built_before_the_wait_for_quiet_and_not_in_the_time_of_the_run(
    world, offloading, tmp_path, caplog
):
    caplog.set_level(logging.INFO)
    waiting, builds = "waiting until the machine is quiet", []

    def build(give_up):
        builds.append((give_up(), (tmp_path / "r1-3").exists(), waiting in caplog.text))
        time.sleep(0.5)

    order, begun_s = QuietWait(most_s=1.5, most_foreign_cores=0), time.monotonic()
    place = {"leased": offloading, "operator_build": OperatorBuild(build)}
    (report,) = world("complete", "complete", until=lease_requests(2), quiet_wait=order, **place).reports()
    assert builds == [(False, False, False)] and waiting in caplog.text
    assert report.gpu_seconds <= 2 * (time.monotonic() - begun_s - 0.5)


def test_a_run_that_needs_what_could_not_be_built_ends_as_setup_without_ranks(world, offloading, tmp_path):
    """Its ranks would build again, each time within their time limit."""

    def build(give_up):
        time.sleep(0.5)
        return "install g++"

    ended_world = world(until=lease_requests(2), leased=offloading, operator_build=OperatorBuild(build))
    (report,) = ended_world.reports()
    assert (report.failure.kind, report.gpu_seconds) == ("setup", 0)
    assert "could not build: install g++" in report.failure.message and not (tmp_path / "r1-3").exists()
    # The service would else end the attempt at a deadline that counts from the lease.
    assert {"starting"} <= {(body["progress"] or {}).get("phase") for body in ended_world.service.bodies("/heartbeat")}


def test_no_rank_starts_for_a_run_that_the_service_takes_away_during_the_build(world, offloading, tmp_path):
    stop = (200, {"action": "stop", "reason": "cancelled", "lease_s": 20})
    build = OperatorBuild(lambda give_up: until(give_up, 30, "the agent ends the build"))
    ended_world = world(until=lease_requests(2), leased=offloading, operator_build=build, heartbeat=stop)
    assert ended_world.reports() == [] and not (tmp_path / "r1-3").exists()


def test_fields_of_a_newer_service_are_ignored(world):
    newer = {"of_a_later_release": [1]}
    done = world(
        "complete",
        "complete",
        until=lease_requests(2),
        lease_change=newer,
        workers=(200, REGISTERED | newer),
        heartbeat=(200, CONTINUE[1] | newer),
    )
    assert done.reports()[0].measurement is not None


def test_a_lease_that_cannot_be_read_is_handed_back_and_nothing_runs(world, caplog):
    done = world(
        until=lease_requests(3),
        lease_change={"task": {"kind": "of_a_later_release"}, "no_progress_s": "soon"},
    )
    (body,) = done.service.bodies("/unreadable")
    assert "/v1/runs/r1/unreadable" in [path for path, _ in done.service.requests]
    assert (body["attempt"], body["session"]) == (3, "session-1")
    assert "task" in body["message"] and "no_progress_s" in body["message"]
    assert not done.reports() and not done.service.bodies("/heartbeat")
    assert "install the service's release" in caplog.text


def test_something_that_is_no_lease_is_not_handed_back(world):
    done = world(until=lease_requests(3), lease_change={"run_id": "../../etc", "task": {}})
    assert not done.service.bodies("/unreadable") and not done.reports()


def test_a_service_that_does_not_know_the_hand_back_does_not_end_the_worker(world):
    done = world(
        until=lease_requests(3),
        lease_change={"task": {}},
        unreadable=(404, {"detail": "no such address"}),
    )
    assert len(done.service.bodies("/unreadable")) == 1


def test_messages_are_written_in_the_agreed_version(world):
    done = world("complete", "complete", until=lease_requests(2))
    registration, *others = [body for _, body in done.service.requests if body]
    assert registration["oldest_protocol_version"] <= registration["protocol_version"] and registration["release"]
    assert {body["protocol_version"] for body in others} == {PROTOCOL_VERSION}


def test_a_service_of_another_release_makes_the_worker_register_again(world):
    rejected = (400, {"code": "protocol_version", "detail": "upgraded meanwhile"})
    done = world("complete", "complete", until=lease_requests(3), first_lease=rejected)
    assert len(done.service.bodies("/workers")) == 2


def test_a_result_that_a_service_of_another_release_cannot_read_does_not_end_the_worker(world):
    rejected = (400, {"code": "protocol_version", "detail": "upgraded meanwhile"})
    assert len(world("complete", "complete", until=lease_requests(2), report=rejected).reports()) == 1


def test_a_version_that_the_worker_does_not_speak_is_named(world):
    with pytest.raises(RequestRejected, match=r"protocol_version \(99\) of the service.*install the service's release"):
        world(until=lambda w: False, workers=(200, REGISTERED | {"protocol_version": 99}))
