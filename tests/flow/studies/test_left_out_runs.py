"""A known answer waits for no comparison of recipes and no rehearsal: what prevents one completes the study, which says why."""

import random

import pytest

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TASK_KINDS, Lease
from shardtune.service.leasing import without_worker
from shardtune.service.lifecycle import expiry, known_answer
from tests.support.service.scenarios import WORKLOAD, create
from tests.support.service.simulated_worker import (
    SPEC,
    SimulatedWorker,
    failure,
    measurement,
    on_quiet_machine,
    speed_of,
)

BASELINE = {"strategy": {"kind": "ddp"}, "micro_batch": 1}
RECIPE = {
    "baseline": BASELINE,
    "workload": SPEC["workload"] | {"precision": "bf16-mixed"},
    "consider": ["bf16-true"],
    "consider_steps": 20,
    "space": {"backends": ["ddp", "zero", "fsdp2"]},
    "budget": {"max_trials": 4},
}
REHEARSAL = {
    "target": "4x2",
    "workload": WORKLOAD | {"global_batch": 32},
    "space": {"backends": ["fsdp1", "fsdp2"], "knobs": {"malloc": "default", "compile": False}},
    "budget": {"max_trials": 4},
}
SUSTAINED = {"space": RECIPE["space"], "budget": RECIPE["budget"] | {"sustained_run_s": 5.0}}
STUDIES = {"recipe": RECIPE, "rehearsal": REHEARSAL}


def behave(_lease, task):
    """A run whose losses are as many as its plan records."""
    losses = tuple(5.0 - 0.01 * step for step in range(max(12, task.plan.loss_steps or 0)))
    return on_quiet_machine(measurement(speed_of(task.config))).model_copy(update={"losses": losses})


def register(client, name="sim"):
    return SimulatedWorker(client, name, behave=behave, task_kinds=TASK_KINDS).register()


def read(client, study_id):
    return client.get(f"/v1/studies/{study_id}").raise_for_status().json()


def purpose_of(client, lease):
    trials = client.get(f"/v1/studies/{lease.study_id}/trials").json()["trials"]
    return next((run["purpose"] for t in trials for run in t["runs"] if run["run_id"] == lease.run_id), None)


def lease_with_end(worker, ends_in_s):
    answer = worker.post("/v1/leases", {"wait_s": 0, "ends_in_s": ends_in_s}).raise_for_status()
    return None if answer.status_code == 204 else Lease.model_validate(answer.json())


def first_optional_run(client, worker, purpose):
    """Do everything before it; its lease."""
    while (lease := worker.lease()) is not None:
        if purpose_of(client, lease) == purpose:
            return lease
        worker.do(lease)
    raise AssertionError(f"the study ended without a {purpose} run")


CODES = {
    "cancelled by its user": "cancelled",
    "gpu_seconds_per_day": "quota_used_up",
    "allocation ends before it could finish": "worker_ends",
    "no live worker": "no_worker",
}
"""Code of a rehearsal that was left out, by words of its reason."""


def check_answer_without(client, study_id, purpose, reason):
    """The study is complete, its answer is served, and says why the optional runs were left out."""
    study = read(client, study_id)
    assert (study["state"], study["result"]["verdict"]) == ("complete", "confirmed"), study["reason"]
    assert client.get(f"/v1/studies/{study_id}/best").status_code == 200
    if purpose == "recipe":
        (note,) = [note for note in study["result"]["notes"] if "were not compared" in note]
        assert note.startswith("recipes (bf16-true)") and reason in note and "sustained" not in note
    else:
        rehearsals = study["result"]["projection"]["rehearsals"]
        assert {row["outcome"] for row in rehearsals} == {"not_rehearsed"}
        assert all(reason in row["problem"]["message"] for row in rehearsals)
        assert {row["problem"]["code"] for row in rehearsals} == {CODES[reason]}
    assert client.get("/v1/recommendations").json()["recommendations"][0]["study_id"] == study_id


def set_quota(client, gpu_seconds):
    client.put("/v1/projects/default", json={"quotas": {"gpu_seconds_per_day": gpu_seconds}}).raise_for_status()


@pytest.fixture(params=STUDIES)
def purpose(request):
    return request.param


def _only_optional_runs_are_left(client, **study):
    worker = register(client)
    study_id = create(client, **study)
    while known_answer.find(client.app.state.context, study_id) is None:
        worker.do(worker.lease())


def recipes_are_left(client):
    """Work until a comparison of recipes is next; no optional run is leased."""
    _only_optional_runs_are_left(client, **RECIPE)


def rehearsals_are_left(client):
    """Work until a rehearsal is next."""
    _only_optional_runs_are_left(client, **REHEARSAL)


def sustained_run_is_left(client):
    """Work until the sustained run is next."""
    _only_optional_runs_are_left(client, **SUSTAINED)


STARTS = {"recipe": recipes_are_left, "rehearsal": rehearsals_are_left, "sustained": sustained_run_is_left}


@pytest.fixture
def sqlite_start(request, sqlite_template, sqlite_after):
    """Begin with a study of which only optional runs are left where a test names it."""
    named = "study_id" in request.fixturenames
    return sqlite_after(STARTS[request.node.callspec.params["purpose"]]) if named else sqlite_template


@pytest.fixture
def study_id(quick_client):
    """Study that the service's database begins with."""
    (study,) = quick_client.get("/v1/studies").json()["studies"]
    return study["study_id"]


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_study_cancelled_during_an_optional_run_keeps_its_answer(quick_client, study_id, purpose, is_paused):
    worker = register(quick_client)
    lease = first_optional_run(quick_client, worker, purpose)
    if is_paused:
        quick_client.post(f"/v1/studies/{study_id}:pause").raise_for_status()
    quick_client.post(f"/v1/studies/{study_id}:cancel").raise_for_status()
    check_answer_without(quick_client, study_id, purpose, "cancelled by its user")
    assert worker.heartbeat(lease)["action"] == "stop"
    assert worker.lease() is None


def test_a_quota_that_is_used_up_when_optional_runs_are_due_does_not_delay_the_answer(quick_client, purpose):
    worker = register(quick_client)
    study_id = create(quick_client, **STUDIES[purpose])
    for _ in range(100):
        set_quota(quick_client, None)
        lease = worker.lease()
        assert purpose_of(quick_client, lease) != purpose
        set_quota(quick_client, 1)
        worker.do(lease)
        if read(quick_client, study_id)["state"] == "complete":
            break
    check_answer_without(quick_client, study_id, purpose, "gpu_seconds_per_day")


def test_a_quota_used_up_while_an_optional_run_waits_does_not_delay_the_answer(quick_client, study_id, purpose):
    worker = register(quick_client)
    first_optional_run(quick_client, worker, purpose)
    worker.register()
    set_quota(quick_client, 1)
    assert worker.lease() is None
    check_answer_without(quick_client, study_id, purpose, "gpu_seconds_per_day")


def test_a_worker_that_ends_before_an_optional_run_leaves_it_out(quick_client, study_id, purpose):
    worker = register(quick_client)
    first_optional_run(quick_client, worker, purpose)
    worker.register()
    assert lease_with_end(worker, 1.0) is None
    check_answer_without(quick_client, study_id, purpose, "allocation ends before it could finish")
    assert read(quick_client, study_id)["reason_code"] != "worker_ends_too_soon"


GONE_S = 100


@pytest.mark.parametrize("has_begun", [True, False])
@pytest.mark.parametrize("purpose", ["sustained", *STUDIES])
def test_the_answer_comes_when_the_last_live_worker_is_gone(quick_client, study_id, context, clock, purpose, has_begun):
    worker = register(quick_client)
    if has_begun:
        first_optional_run(quick_client, worker, purpose)
    clock.turn(GONE_S)
    register(quick_client, "live")
    expiry.sweep(context)
    assert not without_worker.complete_stranded(context, {study_id}), "a live worker may execute the run"
    clock.turn(GONE_S)
    stranded = without_worker.complete_stranded(context, ())
    assert stranded == {study_id}
    assert read(quick_client, study_id)["state"] == "running", "its worker may come back after an outage"
    without_worker.complete_stranded(context, stranded)
    assert read(quick_client, study_id)["state"] == "complete"
    if purpose == "sustained":
        sustained = read(quick_client, study_id)["result"]["sustained"]
        assert (sustained["outcome"], sustained["reason"]) == ("left_out", "no live worker is left that knows this run")
    else:
        check_answer_without(quick_client, study_id, purpose, "no live worker")


def test_a_study_without_its_answer_waits_for_a_worker(quick_client, context, clock):
    worker = register(quick_client)
    study_id = create(quick_client, **SUSTAINED)
    while read(quick_client, study_id)["phase"] != "final_comparison":
        worker.do(worker.lease())
    clock.turn(GONE_S)
    assert without_worker.complete_stranded(context, {study_id}) == {study_id}
    assert read(quick_client, study_id)["state"] == "running"


@pytest.mark.parametrize("more", [{"add_trials": 1}, {"add_pairs": 3}])
def test_an_extension_makes_a_failed_sustained_run_again(quick_client, more):
    made, is_broken, draw = [], True, random.Random(1)

    def behave_when_long(lease, task):
        if task.plan.max_measure_s != SUSTAINED["budget"]["sustained_run_s"]:
            # Pairs that settle nothing: the baseline stays the answer, and pairs can be added.
            return measurement(draw.uniform(900.0, 1300.0))
        made.append(lease.run_id)
        return failure(FailureKind.NUMERICS, "not finite") if is_broken else behave(lease, task)

    worker = SimulatedWorker(quick_client, behave=behave_when_long, task_kinds=TASK_KINDS).register()
    budget = SUSTAINED["budget"] | {"max_pairs": 7, "resume_check": False}
    study_id = create(quick_client, **SUSTAINED | {"budget": budget, "baseline": BASELINE})
    worker.work(200)
    result = read(quick_client, study_id)["result"]
    assert (result["verdict"], result["sustained"]["outcome"], len(made)) == ("undecided", "failed", 1)
    is_broken = False
    quick_client.post(f"/v1/studies/{study_id}:extend", json=more).raise_for_status()
    worker.work(200)
    study = read(quick_client, study_id)
    assert (study["state"], study["result"]["sustained"]["outcome"], len(made)) == ("complete", "measured", 2)
