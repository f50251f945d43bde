"""A whole study, driven over HTTP by a simulated worker."""

from simulated_worker import SPEC, SimulatedWorker, measurement, speed_of


def create(client, **changes):
    answer = client.post("/v1/studies", json=SPEC | changes)
    assert answer.status_code == 201, answer.text
    return answer.json()["study_id"]


def test_study_ends_confirmed_when_the_challenger_is_faster(client):
    worker = SimulatedWorker(client).register()
    study_id = create(client)
    runs = worker.work()
    study = client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete", study["reason"]
    assert runs == 1 + 8 + 10
    result = client.get(f"/v1/studies/{study_id}/best").json()
    assert result["verdict"] == "confirmed"
    assert result["best"]["config"]["strategy"]["kind"] == "fsdp2"
    assert result["speedup"]["pairs"] == 5 and result["speedup"]["ci95"][0] > 1
    assert sum(study["trials"].values()) == 8
    assert study["fingerprint"]["torch"] == "2.13.0"
    assert study["gpu_seconds"] == 6.0 * runs


def test_confirmation_runs_alternate_in_pairs(quick_client):
    worker = SimulatedWorker(quick_client).register()
    study_id = create(quick_client)
    order = []
    while (lease := worker.lease()) is not None:
        order.append(lease.trial_number)
        worker.do(lease)
    a, b = order[-10:][:2]
    assert order[-10:] == [a, b, b, a, a, b, b, a, a, b]
    trial = quick_client.get(f"/v1/studies/{study_id}/trials").json()[a]
    assert [run["purpose"] for run in trial["runs"]] == ["search"] + ["confirm"] * 5


def test_challenger_that_was_only_lucky_is_not_crowned(client):
    def lucky(lease, task):
        """Fast in the search; in the confirmation everyone is alike, with a little noise."""
        searching = lease.run_id not in confirm_runs
        return measurement(speed_of(task.config) if searching else 1000.0 + noise.pop())

    confirm_runs, noise = set(), [3, -4, 5, -2, 1, -3, 2, -5, 4, -1]
    worker = SimulatedWorker(client, behave=lucky).register()
    study_id = create(client)
    for number in range(19):
        lease = worker.lease()
        if number >= 9:
            confirm_runs.add(lease.run_id)
        worker.do(lease)
    result = client.get(f"/v1/studies/{study_id}/best").json()
    assert result["verdict"] == "no_significant_improvement"
    assert result["best"] == result["baseline"]
    assert result["candidate"]["trial_number"] != result["baseline"]["trial_number"]


def test_users_baseline_runs_first_and_is_what_is_beaten(quick_client):
    worker = SimulatedWorker(quick_client).register()
    baseline = {"strategy": {"kind": "zero", "stage": 1}, "micro_batch": 2}
    study_id = create(quick_client, baseline=baseline)
    worker.work()
    trials = quick_client.get(f"/v1/studies/{study_id}/trials").json()
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
    trials = client.get(f"/v1/studies/{study_id}/trials").json()
    assert study["state"] == "complete", study["reason"]
    assert len({str(trial["config"]) for trial in trials}) == len(trials) == 8
