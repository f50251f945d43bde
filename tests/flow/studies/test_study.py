"""A whole study, driven over HTTP by a simulated worker."""

from tests.support.scenarios import THREE_BACKENDS, create
from tests.support.simulated_worker import SimulatedWorker, measurement, speed_of

# What these tests count rests on two near candidates, which eight trials of this space have.


def test_study_ends_confirmed_when_the_challenger_is_faster(client):
    worker = SimulatedWorker(client).register()
    study_id = create(client, **THREE_BACKENDS)
    runs = worker.work()
    study = client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete", study["reason"]
    assert runs == 1 + 8 + client.get(f"/v1/studies/{study_id}/best").json()["promotion"]["runs"]
    result = client.get(f"/v1/studies/{study_id}/best").json()
    assert result["verdict"] == "confirmed"
    assert result["best"]["config"]["strategy"]["kind"] == "fsdp2"
    assert result["speedup"]["pairs"] == 7 and result["speedup"]["ci95"][0] > 1
    assert result["promotion"]["runs"] == 4 + 14 and result["promotion"]["gpu_seconds"] == 6.0 * 18
    assert result["best"]["runs"] == 9 and result["baseline"]["runs"] == 7
    assert sum(study["trials"].values()) == 8
    assert study["fingerprint"]["torch"] == "2.13.0"
    assert study["gpu_seconds"] == 6.0 * runs


def test_promotion_screens_in_blocks_and_then_pairs(quick_client):
    worker = SimulatedWorker(quick_client).register()
    study_id = create(quick_client, **THREE_BACKENDS)
    order = []
    while (lease := worker.lease()) is not None:
        order.append(lease.trial_number)
        worker.do(lease)
    fresh, result = order[9:], quick_client.get(f"/v1/studies/{study_id}/best").json()
    candidates = result["promotion"]["candidates"]
    best, baseline = result["best"]["trial_number"], result["baseline"]["trial_number"]
    assert len(candidates) == 2 and sorted(fresh[:2]) == sorted(fresh[2:4]) == sorted(candidates)
    pairs = list(zip(fresh[4::2], fresh[5::2], strict=True))
    assert all(set(pair) == {best, baseline} for pair in pairs)
    runs = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"][best]["runs"]
    assert [run["block"] for run in runs] == [None, *range(9)]


def test_challenger_that_was_only_lucky_does_not_win(client):
    def lucky(lease, task):
        """Fast in the search; in the promotion everyone is alike."""
        seen.append(lease.run_id)
        return measurement(speed_of(task.config) if len(seen) <= 8 else 1000.0)

    seen = []
    worker = SimulatedWorker(client, behave=lucky).register()
    study_id = create(client)
    worker.work()
    result = client.get(f"/v1/studies/{study_id}/best").json()
    assert result["verdict"] == "no_significant_improvement"
    assert result["best"] == result["baseline"]
    assert result["candidate"]["trial_number"] != result["baseline"]["trial_number"]


def test_a_block_stays_on_the_worker_that_began_it(quick_client, clock):
    one, other = (SimulatedWorker(quick_client, name=f"sim-{i}").register() for i in range(2))
    study_id = create(quick_client, cluster=one.inventory.cluster.model_dump(), **THREE_BACKENDS)
    for _ in range(9 + 1):
        one.do(one.lease())
    assert other.lease() is None
    for _ in range(3):
        one.do(one.lease())
    other.do(other.lease())
    clock.turn(3600)
    assert one.work() > 0, "the other is gone, and its block does not count"
    result = quick_client.get(f"/v1/studies/{study_id}/best").json()
    assert result["verdict"] == "confirmed" and result["promotion"]["runs"] == 4 + 2 + 14


def test_a_promotion_goes_on_where_a_killed_service_left_it(open_service, sqlite_url):
    """Each run is leased from a new service on the same database; the order is that of a service that lives."""
    study_id, order = "", []
    while True:
        worker = SimulatedWorker(open_service(sqlite_url)).register()
        study_id = study_id or create(worker.client, **THREE_BACKENDS)
        lease = worker.lease()
        if lease is None:
            break
        order.append(lease.trial_number)
        worker.do(lease)
    result = worker.client.get(f"/v1/studies/{study_id}/best").json()
    assert result["verdict"] == "confirmed" and result["promotion"]["runs"] == len(order) - 9 == 4 + 14


def test_users_baseline_runs_first_and_is_what_is_beaten(quick_client):
    worker = SimulatedWorker(quick_client).register()
    baseline = {"strategy": {"kind": "zero", "stage": 1}, "micro_batch": 2}
    study_id = create(quick_client, baseline=baseline)
    worker.work()
    trials = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    assert trials[0]["origin"] == "baseline"
    result = quick_client.get(f"/v1/studies/{study_id}/best").json()
    assert result["baseline"]["trial_number"] == 0 and result["verdict"] == "confirmed"


def test_export_of_best_and_of_a_trial(quick_client):
    worker = SimulatedWorker(quick_client).register()
    study_id = create(quick_client)
    assert quick_client.get(f"/v1/studies/{study_id}/export").status_code == 409
    worker.work()
    for which in ("best", "baseline", "0"):
        answer = quick_client.get(f"/v1/studies/{study_id}/export", params={"which": which})
        assert {"config.json", "launch.sh"} <= answer.json()["files"].keys()
    assert quick_client.get(f"/v1/studies/{study_id}/export", params={"which": "99"}).status_code == 404


def test_two_workers_never_run_the_same_configuration(client):
    workers = [SimulatedWorker(client, name=f"sim-{i}").register() for i in range(2)]
    study_id = create(client, cluster=workers[0].inventory.cluster.model_dump())
    idle = 0
    while idle < 3:
        leases = [worker.lease() for worker in workers]
        for worker, lease in zip(workers, leases, strict=True):
            if lease is not None:
                worker.do(lease)
        idle = idle + 1 if leases == [None, None] else 0
    study = client.get(f"/v1/studies/{study_id}").json()
    trials = client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    assert study["state"] == "complete", study["reason"]
    assert len({str(trial["config"]) for trial in trials}) == len(trials) == 8
