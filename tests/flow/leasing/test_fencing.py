"""Fencing of writes: only the holder of the live attempt, and each end once."""

import pytest

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.service.lifecycle import expiry
from shardtune.service.workers import registry
from tests.support.service.simulated_worker import MODEL_SUMMARY, SPEC, SimulatedWorker, failure, measurement


@pytest.fixture
def worker(quick_client):
    return SimulatedWorker(quick_client).register()


@pytest.fixture
def study_id(quick_client, worker):
    return quick_client.post("/v1/studies", json=SPEC).json()["study_id"]


def trial_states(client, study_id):
    return [trial["state"] for trial in client.get(f"/v1/studies/{study_id}/trials").json()["trials"]]


def ends(client, study_id, number=0):
    run = client.get(f"/v1/studies/{study_id}/trials").json()["trials"][number]["runs"][0]
    return [attempt["end"] for attempt in run["attempts"]]


def test_asking_again_returns_the_live_lease(worker, lease):
    again = worker.lease()
    assert (again.run_id, again.attempt, again.task) == (lease.run_id, lease.attempt, lease.task)


def test_deadline_of_a_repeated_lease_counts_from_its_start(worker, lease, clock):
    clock.turn(5)
    assert worker.lease().deadline_s == lease.deadline_s - 5


def test_same_report_again_is_no_news(worker, lease, quick_client, study_id):
    first = worker.report(lease, measurement(1000))
    again = worker.report(lease, measurement(1000))
    assert (first.json(), again.status_code, again.json()) == ({"applied": True}, 200, {"applied": False})
    assert quick_client.get(f"/v1/studies/{study_id}").json()["gpu_seconds"] == 12.0


def test_another_report_of_the_same_attempt_is_rejected(worker, lease, quick_client, study_id):
    worker.report(lease, measurement(1000))
    answer = worker.report(lease, measurement(2000))
    assert (answer.status_code, answer.json()["code"]) == (409, "report_differs")
    assert quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"][0]["tokens_per_s_per_gpu"] == 1000


@pytest.mark.parametrize("change", [{"attempt": 2}, {"session": "session-of-another"}])
def test_stale_attempt_or_wrong_session_changes_nothing(change, worker, lease, quick_client, study_id):
    answer = worker.report(lease, measurement(1000), **change)
    assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost")
    assert worker.heartbeat(lease, **change)["action"] == "stop"
    assert trial_states(quick_client, study_id) == ["running"]


def test_heartbeats_keep_a_lease_alive(worker, lease, context, clock):
    for _ in range(5):
        clock.turn(context.settings.lease_s * 0.9)
        answer = worker.heartbeat(lease, progress={"phase": "measuring", "step": 7})
        assert answer["action"] == "continue" and expiry.sweep(context) == 0


def test_expired_lease_is_retried_and_its_late_report_rejected(worker, lease, context, clock, quick_client, study_id):
    clock.turn(context.settings.lease_s + 1)
    assert expiry.sweep(context) == 1 and expiry.sweep(context) == 0
    assert trial_states(quick_client, study_id) == ["waiting"]
    assert worker.heartbeat(lease)["action"] == "stop"
    assert worker.report(lease, measurement(1000)).json()["code"] == "lease_lost"
    again = worker.lease()
    assert (again.run_id, again.attempt) == (lease.run_id, 2)
    assert worker.report(again, measurement(1000)).status_code == 200
    assert ends(quick_client, study_id) == ["worker_lost", "complete"]


def test_restarted_worker_takes_over_at_once(worker, lease, quick_client, study_id):
    """The old life may still be running somewhere: nothing it says counts."""
    reborn = SimulatedWorker(quick_client, name=worker.name).register()
    assert worker.report(lease, measurement(1000)).status_code == 409
    assert worker.post("/v1/leases", {}).json()["code"] == "unknown_session"
    again = reborn.lease()
    assert (again.run_id, again.attempt) == (lease.run_id, 2)
    reborn.do(again)
    reborn.work()
    study = quick_client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete" and study["trials"] == {"complete": 8}


def test_a_restarted_worker_ends_no_attempt_of_another_worker(worker, lease, quick_client, context, clock, monkeypatch):
    """Its former run may expire and go to another worker before the registration ends it."""
    other, leases_of_other = SimulatedWorker(quick_client, name="other").register(), []

    def end_late(*arguments):
        clock.turn(2 * lease.lease_s)
        expiry.sweep(context)
        leases_of_other.append(other.lease())
        return expiry.end_lost_attempt(*arguments)

    monkeypatch.setattr(registry, "end_lost_attempt", end_late)
    SimulatedWorker(quick_client, name=worker.name).register()
    (again,) = leases_of_other
    assert (again.run_id, again.attempt) == (lease.run_id, 2)
    assert other.heartbeat(again)["action"] == "continue"


def test_run_handed_back_is_given_out_again(worker, lease, quick_client, study_id):
    for _ in range(3):
        worker.report(lease, failure(FailureKind.WORKER_LOST, "stopped by its user")).raise_for_status()
        lease = worker.lease()
    worker.do(lease)
    assert ends(quick_client, study_id) == ["released"] * 3 + ["complete"]


def test_cancel_stops_the_run_and_gives_out_nothing_more(worker, lease, quick_client, study_id):
    answer = quick_client.post(f"/v1/studies/{study_id}:cancel")
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert worker.heartbeat(lease) == {
        "action": "stop",
        "reason": "cancelled",
        "lease_s": 20.0,
        "is_draining": False,
    }
    assert worker.report(lease, measurement(1000)).status_code == 409
    assert worker.lease() is None
    assert trial_states(quick_client, study_id) == ["cancelled"]
    assert quick_client.post(f"/v1/studies/{study_id}:cancel").status_code == 200


def test_paused_study_takes_results_but_gives_out_nothing(worker, lease, quick_client, study_id):
    assert quick_client.post(f"/v1/studies/{study_id}:pause").json()["state"] == "paused"
    assert worker.heartbeat(lease)["action"] == "continue"
    assert worker.report(lease, measurement(1000)).json() == {"applied": True}
    assert worker.lease() is None
    assert quick_client.post(f"/v1/studies/{study_id}:resume").json()["state"] == "running"
    worker.work()
    assert quick_client.get(f"/v1/studies/{study_id}").json()["state"] == "complete"
    assert quick_client.post(f"/v1/studies/{study_id}:pause").json()["code"] == "study_ended"


def test_report_of_the_wrong_kind_is_rejected(worker, lease, quick_client, study_id):
    answer = worker.report(lease, MODEL_SUMMARY)
    assert answer.status_code == 422 and "measurement or failure" in answer.json()["detail"]
    both = worker.report(lease, measurement(1000), failure=failure(FailureKind.CRASH).model_dump(mode="json"))
    assert both.status_code == 422
    assert trial_states(quick_client, study_id) == ["running"]


def test_other_protocol_version_is_rejected(worker, lease):
    for path in ("/v1/leases", f"/v1/runs/{lease.run_id}/heartbeat"):
        answer = worker.post(
            path, {"protocol_version": 99, "attempt": 1} if "runs" in path else {"protocol_version": 99}
        )
        assert (answer.status_code, answer.json()["code"]) == (400, "protocol_version")


def test_a_worker_that_returns_all_it_gets_ends_the_run_and_its_attempts_are_bounded(quick_client, worker, lease):
    for _ in range(60):
        worker.report(lease, failure(FailureKind.WORKER_LOST)).raise_for_status()
        again = worker.lease()
        if again.run_id != lease.run_id:
            break
        lease = again
    assert again.run_id != lease.run_id, "the study goes on with another trial"
    assert ends(quick_client, lease.study_id) == ["released"] * 50
    assert trial_states(quick_client, lease.study_id)[0] == "failed"


def test_a_worker_of_the_release_before_is_told_to_be_upgraded(worker, lease):
    """An invented session id is rejected, since it would close the leases of its holder."""
    answer = worker.introduce(protocol_version=0, session=worker.session, name="old")
    assert (answer.status_code, answer.json()["code"]) == (400, "protocol_version")
    assert "install shardtune" in answer.json()["detail"]
    assert worker.heartbeat(lease)["action"] == "continue"


def test_a_session_is_issued_and_is_its_worker_s_alone(worker, lease, quick_client):
    assert len(worker.session) >= 24 and worker.session not in quick_client.get("/v1/workers").text
    other = SimulatedWorker(quick_client, name="other")
    for name, session in (("other", worker.session), ("other", "made-up-by-me"), (worker.name, "made-up-by-me")):
        answer = other.introduce(name=name, session=session)
        assert (answer.status_code, answer.json()["code"]) == (409, "unknown_session"), (name, session)
        assert session not in answer.text
    assert worker.heartbeat(lease)["action"] == "continue"


def test_a_changed_inventory_keeps_session_and_lease(worker, lease):
    before = worker.session
    worker.register(session=before)
    assert worker.session == before and worker.heartbeat(lease)["action"] == "continue"


def test_drained_worker_finishes_its_run_and_gets_no_more(worker, lease, quick_client, study_id):
    (recorded,) = quick_client.get("/v1/workers").json()["workers"]
    drained = quick_client.post(f"/v1/workers/{recorded['worker_id']}:drain").json()
    assert drained["is_draining"] and drained["run_id"] == lease.run_id
    answer = worker.heartbeat(lease)
    assert (answer["action"], answer["is_draining"]) == ("continue", True)
    assert worker.report(lease, measurement(1000)).json() == {"applied": True}
    assert worker.lease() is None
    reborn = SimulatedWorker(quick_client, name=worker.name).register()
    assert reborn.lease() is None
    quick_client.post(f"/v1/workers/{recorded['worker_id']}:resume").raise_for_status()
    assert reborn.lease() is not None
    assert quick_client.post("/v1/workers/worker-nope:drain").json()["code"] == "unknown_worker"


def test_unknown_run_is_not_found(worker, lease):
    answer = worker.report(lease.model_copy(update={"run_id": "run-nope"}), measurement(1000))
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_run")


def test_worker_with_other_software_gets_no_run_of_the_study(worker, lease, quick_client, study_id):
    other = worker.inventory.fingerprint.model_copy(update={"torch": "2.14.0"})
    reborn = SimulatedWorker(quick_client, name=worker.name, fingerprint=other).register()
    assert reborn.lease() is None
    reason = quick_client.get(f"/v1/studies/{study_id}").json()["reason"]
    assert "torch 2.14.0 instead of 2.13.0" in reason
    back = SimulatedWorker(quick_client, name=worker.name).register()
    assert back.lease() is not None
    assert quick_client.get(f"/v1/studies/{study_id}").json()["reason"] is None
