"""Wait for a quiet machine: which runs wait, and for how long in all."""

import pytest

from shardtune.api_schemas.trials.leases import TrialTask
from tests.flow.studies.busy.busy_studies import CLANG
from tests.support.service.scenarios import create
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker, measurement


def waiting(client, **changes):
    worker = SimulatedWorker(client).register()
    study_id = create(client, wait_for_quiet_s=60, **changes)
    worker.do(worker.lease())
    return worker, study_id


@pytest.mark.wide_on_postgres
def test_runs_wait_for_a_quiet_machine_within_the_studys_seconds_in_all(client):
    worker, study_id = waiting(client)
    lease = worker.lease()
    order = lease.quiet_wait
    assert (order.most_s, order.waited_s) == (60, 0) and order.most_foreign_cores == pytest.approx(0.3)
    programs = [program.model_dump() for program in CLANG]
    wait = {"phase": "waiting_for_quiet", "foreign_cpu_cores": 1.3, "foreign_programs": programs, "waited_s": 25.0}
    assert worker.heartbeat(lease, progress=wait)["action"] == "continue"
    assert "waiting until the machine is quiet" in client.get(f"/studies/{study_id}").text
    assert "clang on 0.9 cores, chrome on 0.4 cores" in client.get(f"/studies/{study_id}").text
    worker.report(lease, measurement(1000), waited_s=40.0).raise_for_status()
    assert worker.lease().quiet_wait.most_s == pytest.approx(20)


@pytest.mark.wide_on_postgres
def test_the_wait_of_a_killed_worker_counts_and_no_wait_is_left_once_it_is_used(client, clock):
    worker, _ = waiting(client)
    lease = worker.lease()
    worker.heartbeat(lease, progress={"phase": "waiting_for_quiet", "waited_s": 45.0})
    again = SimulatedWorker(client, name="sim").register()
    second = again.lease()
    assert (second.run_id, second.attempt) == (lease.run_id, 2)
    assert (second.quiet_wait.most_s, second.quiet_wait.waited_s) == (pytest.approx(15), 45)
    again.report(second, measurement(1000), waited_s=60.0).raise_for_status()
    assert again.lease().quiet_wait is None


@pytest.mark.wide_on_postgres
def test_a_repeated_run_that_may_not_wait_leaves_the_wait_used(client):
    """Its progress said nothing of a wait, and the study could wait for all its seconds again."""
    worker, _ = waiting(client)
    worker.heartbeat(worker.lease(), progress={"phase": "waiting_for_quiet", "waited_s": 60.0})
    again = SimulatedWorker(client, name="sim").register()
    second = again.lease()
    assert second.attempt == 2 and second.quiet_wait is None
    assert again.heartbeat(second, progress={"phase": "measuring"})["action"] == "continue"
    again.report(second, measurement(1000)).raise_for_status()
    assert again.lease().quiet_wait is None


@pytest.mark.wide_on_postgres
def test_only_runs_whose_speed_counts_wait(client):
    worker = SimulatedWorker(client).register()
    create(client, wait_for_quiet_s=60)
    lease = worker.lease()
    assert not isinstance(lease.task, TrialTask) and lease.quiet_wait is None


@pytest.mark.wide_on_postgres
@pytest.mark.parametrize("seconds", [0, -1, 1e9])
def test_a_wait_that_is_no_time_is_rejected(client, seconds):
    SimulatedWorker(client).register()
    answer = client.post("/v1/studies", json=SPEC | {"cluster": CLUSTER.model_dump(), "wait_for_quiet_s": seconds})
    assert answer.status_code == 422 and answer.json()["errors"][0]["field"] == "wait_for_quiet_s"
