"""A study with a target builds its projected answer at the target's number of ranks before it ends."""

import json
import math

import pytest

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TASK_KINDS, TargetRehearsalTask
from shardtune.api_schemas.trials.rehearsals import RehearsalAnswer, RehearsalProblem, RehearsalReport
from shardtune.service.lifecycle import expiry
from shardtune.tuner.projection import rehearsal
from tests.support.long_run import wide
from tests.support.service.scenarios import WORKLOAD, create
from tests.support.service.simulated_worker import (
    CLUSTER,
    SPEC,
    SimulatedWorker,
    failure,
    quietly,
    rehearsed,
)

TARGET = {
    "target": "4x2",
    "workload": WORKLOAD | {"global_batch": 32},
    "space": {"backends": ["fsdp1", "fsdp2"], "knobs": {"malloc": "default", "compile": False}},
    "budget": {"max_trials": 6},
}


LARGE = {"workload": WORKLOAD | {"global_batch": 1024}}
"""Batch whose predicted peak is a tenth of a rank's memory: a rehearsal that needs more than the memory is believable."""


def finished(client, rehearse=rehearsed, **changes):
    """Finished study whose worker rehearses so, and the tasks of its rehearsals."""
    tasks: list[TargetRehearsalTask] = []

    def remembered(task):
        tasks.append(task)
        return rehearse(task)

    worker = SimulatedWorker(client, behave=quietly, rehearse=remembered, task_kinds=TASK_KINDS).register()
    study_id = create(client, **(TARGET | changes))
    worker.work()
    study = client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete", study["reason"]
    return study, tasks


def projection_of(study):
    return study["result"]["projection"]


def problem(code, message="simulated", **fields):
    answer = RehearsalAnswer(problem=RehearsalProblem(code=code, message=message, **fields))
    return RehearsalReport(answers=(answer,), elapsed_s=3.0)


def up_to_a_rehearsal(worker):
    """Work up to the first rehearsal; return its lease."""
    while (lease := worker.lease()) is not None:
        if isinstance(lease.task, TargetRehearsalTask):
            return lease
        worker.do(lease)
    raise AssertionError("the study ended without a rehearsal")


@pytest.fixture(scope="module")
def ended_start(sqlite_after):
    """Database with a finished study, the study, and the tasks of its rehearsals."""
    ended = []

    def ended_study(client):
        ended.append(finished(client))

    return sqlite_after(ended_study), *ended[0]


@pytest.fixture(scope="module")
def held_start(sqlite_after):
    """Database in which a worker holds the first rehearsal of a study, and the worker's session."""
    sessions = []

    def held_rehearsal(client):
        worker = SimulatedWorker(client, behave=quietly, task_kinds=TASK_KINDS).register()
        create(client, **TARGET)
        up_to_a_rehearsal(worker)
        sessions.append(worker.session)

    return sqlite_after(held_rehearsal), sessions[0]


@pytest.fixture
def sqlite_start(request, sqlite_template):
    """Begin with one of the two where a test names what is in it."""
    for name, start in (("ended", "ended_start"), ("rehearsing", "held_start")):
        if name in request.fixturenames:
            return request.getfixturevalue(start)[0]
    return sqlite_template


@pytest.fixture
def ended(quick_client, ended_start):
    """Finished study that the service's database begins with, and the tasks of its rehearsals."""
    return ended_start[1:]


@pytest.fixture
def rehearsing(quick_client, held_start):
    """Worker that holds a rehearsal as the service begins, and its lease, for which it has asked again."""
    worker = SimulatedWorker(quick_client, behave=quietly, task_kinds=TASK_KINDS)
    worker.session = held_start[1]
    lease = worker.lease()
    assert isinstance(lease.task, TargetRehearsalTask) and lease.attempt == 1
    return worker, lease


@pytest.mark.wide_on_postgres
def test_the_projected_best_and_its_runner_up_are_rehearsed_at_the_target(client):
    study, tasks = finished(client)
    projection = projection_of(study)
    rehearsals = projection["rehearsals"]
    assert [one["config"] for one in rehearsals] == [
        projection["best"]["config"], projection["runners_up"][0]["config"]
    ]  # fmt: skip
    assert [task.cluster.world_size for task in tasks] == [8, 8]
    assert [task.workload.global_batch for task in tasks] == [32, 32]
    assert all(part.trial.cluster.nodes == 4 for task in tasks for part in task.parts)
    for one in rehearsals:
        assert (one["outcome"], one["problem"], one["ranks"]) == ("built", None, 8)
        assert one["allocated_gib"] == pytest.approx(0.01, abs=1e-3) and one["predicted_gib"] > 0
        assert one["available_gib"] == pytest.approx(3.8)
    trials = client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    runs = [run for run in trials[projection["best"]["trial_number"]]["runs"] if run["purpose"] == "rehearsal"]
    assert runs[0]["state"] == "complete" and runs[0]["rehearsal"]["answers"][0]["problem"] is None
    assert runs[0]["attempts"][0]["gpu_seconds"] is not None


def test_a_rehearsal_follows_the_verdict_and_the_study_waits_for_it(client):
    worker = SimulatedWorker(client, behave=quietly, task_kinds=TASK_KINDS).register()
    study_id = create(client, **TARGET)
    lease = up_to_a_rehearsal(worker)
    study = client.get(f"/v1/studies/{study_id}").json()
    assert (study["state"], study["phase"], study["result"]) == ("running", "final_comparison", None)
    assert "rehearsing the projection" in client.get(f"/studies/{study_id}").text
    assert lease.deadline_s >= 600 and not lease.is_exclusive
    worker.do(lease)
    worker.work()
    assert client.get(f"/v1/studies/{study_id}").json()["state"] == "complete"


@pytest.mark.parametrize("why", ["misfit", wide("over_memory")])
def test_a_configuration_that_its_rehearsal_rejects_is_no_longer_the_answer(quick_client, why):
    rejected = []

    def rehearse(task):
        key = task.config.content_key()
        if not rejected or rejected == [key]:
            rejected[:] = [key]
            if why == "over_memory":
                return rehearsed(task, gib=3.9)
            return problem("misfit", "dp_shard (8) is wrong; use 4", field="dp_shard", value="8")
        return rehearsed(task)

    study, tasks = finished(quick_client, rehearse, **LARGE)
    projection = projection_of(study)
    first, *others = projection["rehearsals"]
    assert (first["outcome"], first["problem"]["code"]) == ("rejected", why)
    answers = [projection["best"], *projection["runners_up"]]
    assert first["config"] not in [row["config"] for row in answers]
    assert first["config"] not in [row["config"] for row in projection["sizes"] if row["gpus"] == 8]
    assert [one["config"] for one in others] == [row["config"] for row in answers[:2]]
    assert len(tasks) == 3
    if why == "over_memory":
        assert first["allocated_gib"] == pytest.approx(3.9) and first["problem"]["field"] == "cluster.memory_gib"
    page = quick_client.get(f"/studies/{study['study_id']}").text
    section = page[page.index('id="rehearsals"') :]
    said = "rejected by its rehearsal" if why == "over_memory" else "cannot be built (misfit): dp_shard (8) is wrong"
    assert said in section and "built and stepped in a rehearsal" in section
    # The trial itself ran on its own cluster, and stays.
    trials = quick_client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    assert trials[first["trial_number"]]["state"] == "complete"


def test_where_every_configuration_is_rejected_few_are_tried_and_the_answer_is_not_called_rehearsed(quick_client):
    study, tasks = finished(quick_client, lambda _: problem("misfit", "dp_shard (8) is wrong; use 4"))
    result = study["result"]
    if result["projection"] is None:
        assert any("nothing is projected to the target" in note and "dp_shard (8)" in note for note in result["notes"])
    else:
        assert len(tasks) == 4
        assert result["projection"]["best"]["config"] not in [
            one["config"] for one in result["projection"]["rehearsals"]
        ]
        assert "was not rehearsed, because 4 faster" in quick_client.get(f"/studies/{study['study_id']}").text


@pytest.mark.parametrize("code", ["crashed", wide("time"), wide("memory"), wide("error"), wide("data_dependent")])
def test_a_rehearsal_that_dies_or_hangs_takes_nothing_away(quick_client, code):
    study, _ = finished(quick_client, lambda _: problem(code, "the process ended by signal 9 without an answer"))
    projection = projection_of(study)
    first = projection["rehearsals"][0]
    assert (first["outcome"], first["problem"]["code"]) == ("not_rehearsed", code)
    assert first["config"] == projection["best"]["config"] and first["allocated_gib"] is None
    assert f"not rehearsed ({code})" in quick_client.get(f"/studies/{study['study_id']}").text


@pytest.mark.parametrize("kind", [FailureKind.CRASH, wide(FailureKind.DEADLINE), wide(FailureKind.SETUP)])
def test_a_run_that_fails_is_repeated_once_and_then_says_why(quick_client, kind):
    study, tasks = finished(quick_client, lambda _: failure(kind, "rank 0 was killed"))
    first, second = projection_of(study)["rehearsals"]
    assert (first["outcome"], first["problem"]["code"]) == ("not_rehearsed", "run_failed")
    assert first["problem"]["value"] == kind.value and "rank 0 was killed" in first["problem"]["message"]
    assert first["config"] == projection_of(study)["best"]["config"]
    assert len(tasks) == 4, "each of the two is tried twice"
    trials = quick_client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    assert trials[first["trial_number"]]["state"] == "complete"
    assert second["outcome"] == "not_rehearsed"


@pytest.mark.wide_on_postgres
def test_a_worker_killed_in_a_rehearsal_is_lost_and_another_goes_on(client, clock):
    context = client.app.state.context
    first, second = (
        SimulatedWorker(client, name=f"sim-{i}", behave=quietly, task_kinds=TASK_KINDS).register() for i in range(2)
    )
    study_id = create(client, **TARGET, cluster=CLUSTER.model_dump())
    lease = up_to_a_rehearsal(first)
    clock.turn(60)
    assert expiry.sweep(context) == 1
    second.work()
    study = client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete"
    assert projection_of(study)["rehearsals"][0]["outcome"] == "built"
    answer = first.report(lease, rehearsed(lease.task))
    assert answer.status_code == 409 and answer.json()["code"] == "lease_lost"


def nonsense(**changes):
    """Report whose first rank has these figures."""

    def rehearse(task):
        content = rehearsed(task).model_dump(mode="json")
        content["answers"][0]["seen"] |= changes
        return content

    return rehearse


@pytest.mark.parametrize(
    "changes",
    [
        {"peak_bytes": -1},
        wide({"peak_bytes": 10**30}),
        wide({"set_up_s": math.nan}),
        wide({"set_up_s": math.inf}),
        wide({"parts": {"forward": -5}}),
        wide({"rank": "first"}),
    ],
)
def test_figures_that_no_report_may_have_are_rejected_with_their_field(quick_client, rehearsing, changes):
    worker, lease = rehearsing
    content = nonsense(**changes)(lease.task)
    body = {"attempt": lease.attempt, "gpu_seconds": 6.0, "rehearsal": content}
    session = {"protocol_version": 2, "session": worker.session}
    answer = quick_client.post(
        f"/v1/runs/{lease.run_id}/report",
        content=json.dumps(body | session),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code in (400, 422), answer.text
    # As a worker does whose report was rejected.
    worker.report(lease, failure(FailureKind.SETUP, "the service rejected the result"))
    worker.work()
    assert quick_client.get(f"/v1/studies/{lease.study_id}").json()["state"] == "complete"


def changed(**changes):
    def rehearse(task):
        report = rehearsed(task)
        first = report.answers[0].seen.model_copy(update=changes)
        answers = (report.answers[0].model_copy(update={"seen": first}), *report.answers[1:])
        return report.model_copy(update={"answers": answers})

    return rehearse


@pytest.mark.parametrize(
    ("rehearse", "words"),
    [
        (changed(peak_bytes=0, parts={}), "peak of 0 bytes"),
        wide(changed(rank=3), "answered for ranks"),
        wide(changed(parts={"forward": 10**12}), "less than its parts"),
        wide(lambda task: rehearsed(task, gib=1e8), "not within 100 times"),
        wide(lambda _: problem("over_memory"), "a limit of memory that it was not given"),
    ],
)
def test_figures_that_contradict_each_other_or_the_prediction_count_for_nothing(quick_client, rehearse, words):
    study, _ = finished(quick_client, rehearse)
    first = projection_of(study)["rehearsals"][0]
    assert (first["outcome"], first["problem"]["code"]) == ("not_rehearsed", "suspect"), first
    assert words in first["problem"]["message"]
    assert first["config"] == projection_of(study)["best"]["config"]


@pytest.mark.wide_on_postgres
def test_without_a_worker_that_knows_rehearsals_the_answer_says_so(client):
    kinds = tuple(kind for kind in TASK_KINDS if kind != "rehearsal")
    SimulatedWorker(client, behave=quietly, task_kinds=kinds).register()
    study_id = create(client, **TARGET)
    SimulatedWorker(client, behave=quietly, task_kinds=kinds).register().work()
    rehearsals = projection_of(client.get(f"/v1/studies/{study_id}").json())["rehearsals"]
    assert {one["problem"]["code"] for one in rehearsals} == {"no_worker"}
    assert {one["outcome"] for one in rehearsals} == {"not_rehearsed"}


@pytest.mark.wide_on_postgres
def test_a_rehearsal_whose_only_capable_worker_leaves_holds_nothing_up(client, clock):
    kinds = tuple(kind for kind in TASK_KINDS if kind != "rehearsal")
    able = SimulatedWorker(client, "able", quietly, task_kinds=TASK_KINDS).register()
    study_id = create(client, **TARGET, cluster=CLUSTER.model_dump())
    lease = up_to_a_rehearsal(able)
    able.report(lease, failure(FailureKind.WORKER_LOST, "stopped"))
    clock.turn(200)
    old = SimulatedWorker(client, "old", quietly, task_kinds=kinds).register()
    old.work()
    study = client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete"
    assert {one["problem"]["code"] for one in projection_of(study)["rehearsals"]} == {"no_worker"}


def test_strategies_that_no_rehearsal_carries_are_named_without_a_run(quick_client):
    space = {"backends": ["ddp", "zero"], "knobs": {"malloc": "default", "compile": False}}
    study, tasks = finished(quick_client, space=space)
    rehearsals = projection_of(study)["rehearsals"]
    assert tasks == [] and {one["problem"]["code"] for one in rehearsals} == {"unsupported"}
    assert {one["outcome"] for one in rehearsals} == {"not_rehearsed"}
    assert "was not rehearsed (unsupported)" in quick_client.get(f"/studies/{study['study_id']}").text


def test_a_compiled_configuration_is_rehearsed_without_compilation_and_keeps_its_place(quick_client):
    space = {"backends": ["fsdp2"], "knobs": {"malloc": "default", "compile": True}}
    study, tasks = finished(quick_client, lambda task: rehearsed(task, gib=3.9), space=space, **LARGE)
    first = projection_of(study)["rehearsals"][0]
    assert not tasks[0].config.compile and first["config"]["compile"] and first["without_compile"]
    assert (first["outcome"], first["available_gib"]) == ("built", None)


def test_a_budget_may_leave_rehearsals_out(quick_client):
    study, tasks = finished(quick_client, budget={"max_trials": 6, "skip_rehearsal": True})
    assert tasks == [] and projection_of(study)["rehearsals"] == []


def test_an_extended_study_rehearses_only_what_is_new(quick_client, ended):
    study, tasks = ended
    answer = quick_client.post(f"/v1/studies/{study['study_id']}:extend", json={"add_trials": 1})
    assert answer.status_code == 200, answer.text
    again: list[TargetRehearsalTask] = []

    def remembered(task):
        again.append(task)
        return rehearsed(task)

    SimulatedWorker(quick_client, behave=quietly, rehearse=remembered, task_kinds=TASK_KINDS).register().work()
    known = {task.config.content_key() for task in tasks}
    assert not known & {task.config.content_key() for task in again}


def test_a_cancelled_rehearsal_ends_with_its_study(quick_client, rehearsing):
    worker, lease = rehearsing
    assert quick_client.post(f"/v1/studies/{lease.study_id}:cancel").status_code == 200
    assert worker.heartbeat(lease)["action"] == "stop"
    assert worker.lease() is None


def test_the_served_projection_says_whether_it_was_rehearsed(quick_client, ended):
    study, _ = ended
    cluster = CLUSTER.model_copy(update={"nodes": 4}).model_dump_json()
    workload = json.dumps(TARGET["workload"])
    query = {"model": SPEC["model"], "cluster": cluster, "workload": workload, "match": "exact", "projections": "true"}
    best = quick_client.get("/v1/best", params=query).json()
    assert best["projection"]["rehearsals"] == projection_of(study)["rehearsals"]
    assert any("a rehearsal built and stepped it with 8 ranks" in reason for reason in best["confidence"]["reasons"])


def test_a_study_without_a_target_rehearses_nothing(quick_client):
    seen = []
    worker = SimulatedWorker(quick_client, behave=quietly, rehearse=seen.append, task_kinds=TASK_KINDS).register()
    study_id = create(quick_client, budget={"max_trials": 2})
    worker.work()
    assert quick_client.get(f"/v1/studies/{study_id}").json()["state"] == "complete"
    assert seen == []


def test_a_waiting_rehearsal_that_a_new_release_rejects_ends_as_its_problem(quick_client, rehearsing, monkeypatch):
    worker, lease = rehearsing
    worker.report(lease, failure(FailureKind.WORKER_LOST, "the service was updated"))
    rejection = RehearsalProblem(code="unsupported", message="rejected by this release")
    monkeypatch.setattr(rehearsal, "plan", lambda _trial: rejection)
    worker.work()
    study = quick_client.get(f"/v1/studies/{lease.study_id}").json()
    assert study["state"] == "complete", study["reason"]
    problems = [one["problem"]["code"] for one in projection_of(study)["rehearsals"]]
    assert problems and set(problems) == {"unsupported"}
