"""A trial of an ended study runs once more under the profiler, on request or after the verdict; nothing else follows from it."""

import pytest
from sqlalchemy import text

from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.api_schemas.trials.diagnosis import MemoryMoment
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TASK_KINDS, TraceTask
from shardtune.service.lifecycle import expiry
from tests.support.service.page_reader import HTML, page, token
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, diagnosis, failure, measurement, quietly

NEW = {"task_kinds": TASK_KINDS, "behave": quietly}
RATES = MeasuredHardware(bf16_flops=1e11, fp32_flops=1e11, copy_bytes_per_s=1e10, launch_s=1e-5)
BUDGET = {"max_trials": 2, "max_pairs": 7, "resume_check": False}


def create(client, **changes):
    budget = BUDGET | changes.pop("budget", {})
    answer = client.post("/v1/studies", json=SPEC | {"budget": budget} | changes)
    assert answer.status_code == 201, answer.text
    return answer.json()["study_id"]


def measured(client):
    """Make the study that most rules here are about."""
    worker = SimulatedWorker(client, **NEW).register()
    study = SPEC | {"budget": BUDGET}
    client.post("/v1/studies", json=study, params={"study_id": "ended"}).raise_for_status()
    worker.work()


@pytest.fixture
def sqlite_start(request, sqlite_template, sqlite_after):
    """Begin with the study where a test names it."""
    return sqlite_after(measured) if "ended" in request.fixturenames else sqlite_template


@pytest.fixture
def ended(quick_client):
    """A worker of this release and a study of it that is complete."""
    return SimulatedWorker(quick_client, **NEW).register(), "/v1/studies/ended"


def without_runs(client, path):
    """A study as a reader sees it, without the run's cost."""
    study = client.get(path).json()
    trials = client.get(f"{path}/trials").json()["trials"]
    return study | {"gpu_seconds": None}, [trial | {"runs": None} for trial in trials]


def test_a_trial_is_traced_on_request_and_the_study_stays_as_it_is(quick_client, ended):
    worker, path = ended
    before, served = without_runs(quick_client, path), quick_client.get(f"{path}/best").json()
    response = quick_client.post(f"{path}/trials/1:diagnose")
    assert (response.status_code, response.json()["state"], response.json()["diagnosis"]) == (202, "waiting", None)
    again = quick_client.post(f"{path}/trials/1:diagnose").json()
    assert again["run_id"] == response.json()["run_id"]
    lease = worker.lease()
    assert isinstance(lease.task, TraceTask) and (lease.run_id, lease.trial_number) == (again["run_id"], 1)
    assert quick_client.get(f"{path}/trials/1/diagnosis").json()["state"] == "running"
    worker.do(lease)
    body = quick_client.get(f"{path}/trials/1/diagnosis").json()
    assert (body["state"], body["worker"], body["gpu_seconds"]) == ("complete", "sim", 6.0)
    assert body["diagnosis"]["parts"]["compute_s"] == 0.5 and len(body["diagnosis"]["timeline"]["lanes"]) == 2
    assert without_runs(quick_client, path) == before and quick_client.get(f"{path}/best").json() == served
    assert worker.lease() is None
    spent = {cost["cause"]: cost["gpu_seconds"] for cost in quick_client.get("/v1/costs").json()["costs"]}
    assert spent["diagnosis"] == 6.0


def test_what_was_expected_stands_beside_what_was_measured(quick_client):
    worker = SimulatedWorker(quick_client, **NEW, measured=RATES).register()
    path = f"/v1/studies/{create(quick_client)}"
    worker.work()
    quick_client.post(f"{path}/trials/0:diagnose").raise_for_status()
    worker.work()
    expected = quick_client.get(f"{path}/trials/0/diagnosis").json()["diagnosis"]["expected"]
    assert {part["name"] for part in expected} == {"computing", "communication", "optimizer"}
    assert all(part["expected_s"] >= 0 for part in expected)
    assert "Expected and measured" in page(quick_client, f"{path.removeprefix('/v1')}/trials/0/why")


def test_findings_are_the_service_s_own_with_knobs_of_the_space(quick_client, ended):
    worker, path = ended
    worker.trace = lambda _: diagnosis(host_s=0.39, findings=())
    quick_client.post(f"{path}/trials/0:diagnose").raise_for_status()
    worker.work()
    reported_diagnosis = quick_client.get(f"{path}/trials/0/diagnosis").json()["diagnosis"]
    assert [finding["kind"] for finding in reported_diagnosis["findings"]] == ["host_bound"] and reported_diagnosis[
        "findings"
    ][0]["knobs"]


def test_a_diagnosis_of_eight_ranks_is_small_in_the_database(quick_client, ended):
    worker, path = ended
    worker.trace = lambda _: diagnosis(ranks=8, host_s=0.39)
    quick_client.post(f"{path}/trials/0:diagnose").raise_for_status()
    worker.work()
    with quick_client.app.state.context.db.read() as session:
        (size,) = session.execute(text("SELECT length(diagnosis) FROM runs WHERE diagnosis IS NOT NULL")).one()
    assert size < 10_000


def test_out_of_memory_is_told_with_what_it_was_made_of_and_a_change_that_is_predicted_to_fit(quick_client, ended):
    worker, path = ended
    moment = MemoryMoment(
        rank=1,
        bytes=3_000_000_000,
        limit_bytes=2_000_000_000,
        peak_bytes=3_000_000_000,
        phase="backward",
        module="model.layers.2.mlp",
        kinds={"activations": 2_900_000_000, "parameters": 100_000_000},
        holders={"model.layers.2.mlp": 2_900_000_000},
    )
    recorded = diagnosis().recorded.model_copy(update={"memory": moment})
    worker.trace = lambda _: diagnosis(recorded=recorded)
    quick_client.post(f"{path}/trials/1:diagnose").raise_for_status()
    worker.work()
    finding = quick_client.get(f"{path}/trials/1/diagnosis").json()["diagnosis"]["findings"][0]
    assert finding["kind"] == "out_of_memory" and "in backward of model.layers.2.mlp" in finding["evidence"]
    assert "activations 97%" in finding["evidence"]
    reported_page = page(quick_client, f"{path.removeprefix('/v1')}/trials/1/why")
    assert "Memory at the limit" in reported_page and "Out of memory" in reported_page


@pytest.mark.parametrize("kind", [FailureKind.OOM, FailureKind.CRASH])
def test_one_that_fails_is_told_and_touches_nothing(quick_client, ended, kind):
    worker, path = ended
    before = without_runs(quick_client, path)
    worker.trace = lambda _: failure(kind, "the profiler took too much")
    quick_client.post(f"{path}/trials/0:diagnose").raise_for_status()
    worker.work()
    body = quick_client.get(f"{path}/trials/0/diagnosis").json()
    assert body["state"] in ("infeasible", "failed") and body["failure"]["message"] == "the profiler took too much"
    assert without_runs(quick_client, path) == before
    assert quick_client.post(f"{path}/trials/0:diagnose").json()["run_id"] != body["run_id"]


def test_a_worker_that_is_lost_in_it_is_repeated(client, clock):
    context = client.app.state.context
    worker = SimulatedWorker(client, **NEW).register()
    path = f"/v1/studies/{create(client)}"
    worker.work()
    client.post(f"{path}/trials/0:diagnose").raise_for_status()
    lost = worker.lease()
    clock.turn(context.settings.lease_s + 1)
    assert expiry.sweep(context) == 1
    worker.register()
    again = worker.lease()
    assert (again.run_id, again.attempt) == (lost.run_id, 2)
    assert worker.report(lost, diagnosis()).status_code == 409


@pytest.mark.wide_on_postgres
def test_the_winner_and_its_baseline_are_traced_after_the_verdict_where_the_budget_says_so(client):
    worker = SimulatedWorker(client, **NEW).register()
    baseline = {"strategy": {"kind": "ddp"}, "micro_batch": 1}
    study_id = create(client, budget={"profile": True, "max_trials": 4}, baseline=baseline)
    while client.get(f"/v1/studies/{study_id}").json()["state"] == "running":
        lease = worker.lease()
        assert not isinstance(lease.task, TraceTask)
        worker.do(lease)
    result = client.get(f"/v1/studies/{study_id}/best").json()
    expected = {result["best"]["trial_number"], result["baseline"]["trial_number"]}
    assert worker.work() == len(expected) == 2
    for number in expected:
        body = client.get(f"/v1/studies/{study_id}/trials/{number}/diagnosis").json()
        assert body["state"] == "complete" and body["diagnosis"] is not None


def test_a_worker_of_an_older_release_gets_none(quick_client, ended):
    _, path = ended
    quick_client.post(f"{path}/trials/0:diagnose").raise_for_status()
    old = SimulatedWorker(quick_client, name="old").register()
    assert old.lease() is None
    assert SimulatedWorker(quick_client, name="new", **NEW).register().lease() is not None


def test_what_cannot_be_traced_is_rejected_with_the_reason(quick_client, ended):
    _, path = ended

    def rejected(method, end, base=path):
        answer = quick_client.request(method, f"{base}/trials/{end}")
        return answer.status_code, answer.json()["code"]

    assert rejected("GET", "0/diagnosis") == (404, "unknown_diagnosis")
    assert rejected("GET", "99/diagnosis") == rejected("POST", "99:diagnose") == (404, "unknown_trial")
    assert rejected("POST", "0:diagnose", "/v1/studies/none") == (404, "unknown_study")
    running = f"/v1/studies/{create(quick_client)}"
    assert rejected("POST", "0:diagnose", running) == (404, "unknown_trial")
    SimulatedWorker(quick_client, name="second", **NEW).register().work(at_most=100)
    quick_client.delete(path).raise_for_status()
    assert rejected("POST", "0:diagnose") == (409, "study_deleted")


def test_a_running_study_is_not_disturbed(quick_client):
    worker = SimulatedWorker(quick_client, **NEW).register()
    path = f"/v1/studies/{create(quick_client)}"
    for _ in range(2):
        worker.do(worker.lease())
    answer = quick_client.post(f"{path}/trials/0:diagnose")
    assert (answer.status_code, answer.json()["code"]) == (409, "study_running")


def test_a_report_of_another_kind_is_rejected(quick_client, ended):
    worker, path = ended
    quick_client.post(f"{path}/trials/0:diagnose").raise_for_status()
    lease = worker.lease()
    answer = worker.report(lease, measurement(1000.0))
    assert answer.status_code == 422 and "diagnosis or failure" in answer.text


def test_the_page_asks_for_a_profile_and_shows_where_the_step_went(quick_client, ended):
    worker, path = ended
    trial = f"{path.removeprefix('/v1')}/trials/1"
    assert f'href="{trial}/why"' in page(quick_client, trial)
    shown = page(quick_client, f"{trial}/why")
    assert "never run under the profiler" in shown and "Profile this trial" in shown
    form = {"csrf": token(quick_client)}
    response = quick_client.post(f"{trial}/why", data=form, headers=HTML, follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (303, f"{trial}/why")
    waiting = page(quick_client, f"{trial}/why")
    assert "Waiting for a worker" in waiting and "poll.js" in waiting and "Profile this trial" not in waiting
    worker.trace = lambda _: diagnosis(host_s=0.39)
    worker.work()
    reported_page = page(quick_client, f"{trial}/why")
    for says in (
        "The host launches kernels too slowly",
        "One step, moment by moment",
        "all-gathers of parameters",
        "Profile again",
    ):
        assert says in reported_page
    assert reported_page.count('class="p-compute"') == 1 + 2 + 2, "a legend, two ranks, two lanes"
    assert "profiled run</td>" in page(quick_client, trial)
