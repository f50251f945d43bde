"""GPU-seconds of an attempt: the service's clock bounds what a worker says, in both directions."""

import pytest
from sqlalchemy import update

from shardtune.api_schemas.access.keys import DEFAULT_PROJECT
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.db.queries import costs
from shardtune.db.tables.trials import AttemptRow
from tests.support.service.simulated_worker import CLUSTER, MODEL_SUMMARY, SPEC, SimulatedWorker, failure, measurement

RUN_S, ERROR_S = 15.0, 6.0


def charged(client, clock, outcome, gpu_seconds, **worker_of):
    """GPU-seconds of the first trial's run of 15 s on two ranks, of which the worker reports a figure."""
    worker = SimulatedWorker(client, **worker_of).register()
    study = client.post("/v1/studies", json=SPEC | {"cluster": CLUSTER.model_dump(mode="json")}).json()["study_id"]
    worker.report(worker.lease(), MODEL_SUMMARY, gpu_seconds=0.0).raise_for_status()
    before = client.get(f"/v1/studies/{study}").json()["gpu_seconds"]
    lease = worker.lease()
    clock.turn(RUN_S)
    worker.report(lease, outcome, gpu_seconds=gpu_seconds).raise_for_status()
    return client.get(f"/v1/studies/{study}").json()["gpu_seconds"] - before


def test_a_figure_that_agrees_with_the_lease_is_taken(quick_client, clock):
    assert charged(quick_client, clock, measurement(1000), 2 * 14.25) == 28.5


def test_more_than_the_lease_lasted_is_not_charged(quick_client, clock):
    assert charged(quick_client, clock, measurement(1000), 1e12) == 2 * (RUN_S + ERROR_S)


@pytest.mark.parametrize("outcome", [measurement(1000), failure(FailureKind.CRASH), failure(FailureKind.WORKER_LOST)])
def test_no_end_is_free_whatever_the_worker_says(quick_client, clock, outcome):
    assert charged(quick_client, clock, outcome, 0.0) == 2 * (RUN_S - ERROR_S)


def test_a_run_of_a_cancelled_study_is_charged_until_its_end(quick_client, clock):
    """It cost nothing, so that a project could use more than its GPU-seconds of the day."""
    worker = SimulatedWorker(quick_client).register()
    study = quick_client.post("/v1/studies", json=SPEC | {"cluster": CLUSTER.model_dump(mode="json")}).json()[
        "study_id"
    ]
    worker.report(worker.lease(), MODEL_SUMMARY, gpu_seconds=0.0).raise_for_status()
    before = quick_client.get(f"/v1/studies/{study}").json()["gpu_seconds"]
    worker.lease()
    clock.turn(RUN_S)
    assert quick_client.post(f"/v1/studies/{study}:cancel").json()["gpu_seconds"] == before + 2 * RUN_S
    (trial,) = quick_client.get(f"/v1/studies/{study}/trials").json()["trials"]
    (attempt,) = trial["runs"][0]["attempts"]
    assert (attempt["end"], attempt["gpu_seconds"]) == ("cancelled", 2 * RUN_S)


def test_a_run_whose_lease_expired_before_its_study_was_cancelled_is_charged_until_then(quick_client, clock):
    """After an hour without the service, a cancelled study was charged for that hour."""
    worker = SimulatedWorker(quick_client).register()
    study = quick_client.post("/v1/studies", json=SPEC | {"cluster": CLUSTER.model_dump(mode="json")}).json()[
        "study_id"
    ]
    worker.report(worker.lease(), MODEL_SUMMARY, gpu_seconds=0.0).raise_for_status()
    before = quick_client.get(f"/v1/studies/{study}").json()["gpu_seconds"]
    lease = worker.lease()
    clock.turn(3600)
    after = quick_client.post(f"/v1/studies/{study}:cancel").json()["gpu_seconds"]
    assert after == before + 2 * lease.lease_s


def test_a_gang_that_lends_all_its_hosts_to_a_smaller_run_is_charged_for_all_of_them(quick_client, clock):
    gang = CLUSTER.model_copy(update={"nodes": 4})
    assert charged(quick_client, clock, measurement(1000), 8 * RUN_S, cluster=gang) == 8 * RUN_S


def test_the_wait_for_a_quiet_machine_costs_nothing_as_far_as_the_study_allows_it(quick_client, clock):
    waiting = charged_after_wait(quick_client, clock, allowed_s=60, claimed_s=5)
    assert waiting == 2 * (RUN_S - 5 - ERROR_S)


def test_a_wait_that_no_study_allows_evades_no_charge(quick_client, clock):
    assert charged_after_wait(quick_client, clock, allowed_s=None, claimed_s=1e9) == 2 * (RUN_S - ERROR_S)
    assert charged_after_wait(quick_client, clock, allowed_s=3, claimed_s=1e9) == 2 * (RUN_S - 3 - ERROR_S)


def charged_after_wait(client, clock, allowed_s, claimed_s):
    """GPU-seconds of a run of 15 s whose worker reports none and claims to have waited."""
    worker, study, lease = trial_of_waiting_study(client, allowed_s)
    before = client.get(f"/v1/studies/{study}").json()["gpu_seconds"]
    clock.turn(RUN_S)
    worker.report(lease, measurement(1000), gpu_seconds=0.0, waited_s=claimed_s).raise_for_status()
    client.post(f"/v1/studies/{study}:cancel")
    return client.get(f"/v1/studies/{study}").json()["gpu_seconds"] - before


def trial_of_waiting_study(client, allowed_s):
    """Worker with the lease of the first trial of a study whose runs may wait for a quiet machine."""
    worker = SimulatedWorker(client).register()
    spec = SPEC | {"cluster": CLUSTER.model_dump(mode="json"), "wait_for_quiet_s": allowed_s}
    study = client.post("/v1/studies", json=spec).json()["study_id"]
    lease = worker.lease()
    while lease.study_id != study or lease.task.kind != "trial":
        worker.report(lease, MODEL_SUMMARY, gpu_seconds=0.0).raise_for_status()
        lease = worker.lease()
    return worker, study, lease


EARLIER_WAIT_S, OWN_WAIT_S = 12.0, 4.0


def second_attempt(client):
    """Worker with the second lease of a run, whose first attempt waited for a quiet machine and was lost."""
    worker, study, lease = trial_of_waiting_study(client, allowed_s=60)
    say_waited(worker, lease, EARLIER_WAIT_S)
    again = SimulatedWorker(client).register()
    second = again.lease()
    assert (second.run_id, second.attempt, second.quiet_wait.waited_s) == (lease.run_id, 2, EARLIER_WAIT_S)
    return again, study, second


def say_waited(worker, lease, waited_s):
    answer = worker.heartbeat(lease, progress={"phase": "waiting_for_quiet", "waited_s": waited_s})
    assert answer["action"] == "continue"


def costs_of_attempts(client, study):
    (trial,) = client.get(f"/v1/studies/{study}/trials").json()["trials"]
    return [attempt["gpu_seconds"] for attempt in trial["runs"][0]["attempts"]]


@pytest.mark.wide_on_postgres
@pytest.mark.parametrize("own_wait_s", [0.0, OWN_WAIT_S])
def test_the_wait_of_an_earlier_attempt_lowers_no_later_charge(client, clock, own_wait_s):
    worker, study, lease = second_attempt(client)
    clock.turn(RUN_S)
    waited_s = EARLIER_WAIT_S + own_wait_s
    worker.report(lease, measurement(1000), gpu_seconds=0.0, waited_s=waited_s).raise_for_status()
    client.post(f"/v1/studies/{study}:cancel")
    assert costs_of_attempts(client, study) == [0.0, 2 * (RUN_S - own_wait_s - ERROR_S)]


def test_a_repeated_run_of_a_cancelled_study_is_charged_without_its_own_wait_only(quick_client, clock):
    worker, study, lease = second_attempt(quick_client)
    say_waited(worker, lease, EARLIER_WAIT_S + OWN_WAIT_S)
    clock.turn(RUN_S)
    quick_client.post(f"/v1/studies/{study}:cancel")
    assert costs_of_attempts(quick_client, study) == [0.0, 2 * (RUN_S - OWN_WAIT_S)]


def test_a_repeated_run_whose_worker_falls_silent_is_charged_without_its_own_wait_only(quick_client, clock):
    worker, study, lease = second_attempt(quick_client)
    clock.turn(RUN_S)
    say_waited(worker, lease, EARLIER_WAIT_S + OWN_WAIT_S)
    SimulatedWorker(quick_client).register()
    quick_client.post(f"/v1/studies/{study}:cancel")
    assert costs_of_attempts(quick_client, study)[1] == 2 * (RUN_S - OWN_WAIT_S)


def test_what_a_running_attempt_has_used_counts_without_its_own_wait_and_until_its_lease_ends(quick_client, clock):
    worker, _, lease = second_attempt(quick_client)
    say_waited(worker, lease, EARLIER_WAIT_S + OWN_WAIT_S)
    context = quick_client.app.state.context

    def used():
        with context.db.read() as session:
            return costs.running_gpu_seconds(session, DEFAULT_PROJECT, context.now())

    clock.turn(RUN_S)
    assert used() == 2 * (RUN_S - OWN_WAIT_S)
    clock.turn(3600)
    assert used() == 2 * (lease.lease_s - OWN_WAIT_S)


def test_the_waits_of_all_runs_together_evade_no_more_than_the_study_allows(quick_client, clock):
    worker, study, lease = trial_of_waiting_study(quick_client, allowed_s=RUN_S + 5)
    charged_so_far = []
    for claimed_s in (RUN_S, 1e9):
        before = quick_client.get(f"/v1/studies/{study}").json()["gpu_seconds"]
        clock.turn(RUN_S)
        worker.report(lease, measurement(1000), gpu_seconds=0.0, waited_s=claimed_s).raise_for_status()
        charged_so_far.append(quick_client.get(f"/v1/studies/{study}").json()["gpu_seconds"] - before)
        lease = worker.lease()
    assert charged_so_far == [0.0, 2 * (RUN_S - 5 - ERROR_S)]


def test_a_run_that_was_not_to_wait_evades_no_charge_by_a_wait(quick_client, clock):
    worker = SimulatedWorker(quick_client).register()
    spec = SPEC | {"cluster": CLUSTER.model_dump(mode="json"), "wait_for_quiet_s": 60}
    study = quick_client.post("/v1/studies", json=spec).json()["study_id"]
    lease = worker.lease()
    assert lease.quiet_wait is None
    clock.turn(RUN_S)
    worker.report(lease, MODEL_SUMMARY, gpu_seconds=0.0, waited_s=RUN_S).raise_for_status()
    assert quick_client.get(f"/v1/studies/{study}").json()["gpu_seconds"] == RUN_S - ERROR_S


def test_an_attempt_that_an_older_release_leased_is_charged_as_that_release_did(quick_client, clock):
    worker, study, lease = trial_of_waiting_study(quick_client, allowed_s=60)
    with quick_client.app.state.context.db.write() as session:
        session.execute(update(AttemptRow).values(waited_before_s=None, may_wait_s=None))
    clock.turn(RUN_S)
    worker.report(lease, measurement(1000), gpu_seconds=0.0, waited_s=5.0).raise_for_status()
    quick_client.post(f"/v1/studies/{study}:cancel")
    assert costs_of_attempts(quick_client, study) == [2 * (RUN_S - 5 - ERROR_S)]
