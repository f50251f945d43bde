"""Failures in a study: recorded with their reason, retried where the platform is at fault, never fatal."""

import pytest

from shardtune.api_schemas.studies.budget import FEWEST_PAIRS
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.tuner.verdict import final_comparison
from tests.support.service.scenarios import run_study
from tests.support.service.simulated_worker import (
    CLUSTER,
    MODEL_SUMMARY,
    SPEC,
    SimulatedWorker,
    failure,
    measurement,
    quietly,
    speed_of,
    well,
)


def only(number, outcome):
    """One trial ends as given, the others well."""
    return lambda lease, task: outcome if lease.trial_number == number else quietly(lease, task)


STUDY = "failing"


def work(client, behave):
    """A study by that name, to its end."""
    worker = SimulatedWorker(client, behave=behave).register()
    client.post("/v1/studies", json=SPEC, params={"study_id": STUDY}).raise_for_status()
    worker.work()


def ended_runs(client):
    """Trial 0 ends out of memory, 1 loses a rank each time, and 2 makes no progress once."""
    outcomes = {0: failure(FailureKind.OOM, "tried to allocate 3 GiB"), 1: failure(FailureKind.RANK_LOST)}

    def behave(lease, task):
        if lease.trial_number == 2 and lease.attempt == 1:
            return failure(FailureKind.NO_PROGRESS)
        return outcomes.get(lease.trial_number) or quietly(lease, task)

    work(client, behave)


def doubtful_runs(client):
    """Trial 0 has figures that cannot be true, 1 ran on a throttled device once, and 2 needs more than the limit."""
    suspect = measurement(99_000).model_copy(update={"suspect": "an MFU of 310 %: more FLOPs than the device has"})
    outcomes = {0: suspect, 2: measurement(9000, peak_gib=3.9)}

    def behave(lease, task):
        if lease.trial_number == 1 and lease.attempt == 1:
            return failure(FailureKind.DEVICE, "GPU-1 was throttled")
        return outcomes.get(lease.trial_number) or quietly(lease, task)

    work(client, behave)


@pytest.fixture
def sqlite_start(request, sqlite_template, sqlite_after):
    """Begin with a study of several faults where a test names it."""
    for name, begin in (("after_ended_runs", ended_runs), ("after_doubtful_runs", doubtful_runs)):
        if name in request.fixturenames:
            return sqlite_after(begin)
    return sqlite_template


def read(client):
    """The study and its trials."""
    trials = client.get(f"/v1/studies/{STUDY}/trials").json()["trials"]
    return client.get(f"/v1/studies/{STUDY}").json(), trials


@pytest.fixture
def after_ended_runs(quick_client):
    return read(quick_client)


@pytest.fixture
def after_doubtful_runs(quick_client):
    return read(quick_client)


def test_out_of_memory_is_a_result_and_not_retried(after_ended_runs):
    study, trials = after_ended_runs
    assert study["state"] == "complete" and study["trials"] == {"complete": 6, "infeasible": 1, "failed": 1}
    assert trials[0]["state"] == "infeasible"
    assert trials[0]["failure"]["message"] == "tried to allocate 3 GiB"
    assert [attempt["end"] for attempt in trials[0]["runs"][0]["attempts"]] == ["oom"]


def test_platform_fault_is_retried_once_and_the_same_end_twice_is_failed(after_ended_runs):
    study, trials = after_ended_runs
    assert study["state"] == "complete" and trials[1]["state"] == "failed"
    assert [attempt["end"] for attempt in trials[1]["runs"][0]["attempts"]] == ["rank_lost", "rank_lost"]


def test_retry_that_ends_well_leaves_no_failure(after_ended_runs):
    _, trials = after_ended_runs
    assert [attempt["end"] for attempt in trials[2]["runs"][0]["attempts"]] == ["no_progress", "complete"]
    assert trials[2]["state"] == "complete"
    assert trials[2]["failure"] is None and trials[2]["runs"][0]["failure"] is None


def test_run_over_the_memory_limit_is_infeasible_with_its_measurement_kept(after_doubtful_runs):
    study, trials = after_doubtful_runs
    assert trials[2]["state"] == "infeasible" and trials[2]["failure"]["kind"] == "over_limit"
    assert "3.80 GiB" in trials[2]["failure"]["message"]
    assert trials[2]["peak_allocated_gib"] == 3.9
    assert study["best_so_far"]["trial_number"] != 2


def test_cpu_ranks_get_the_limit_with_their_task(quick_client):
    limits = []

    def look(lease, task):
        limits.append(task.memory_limit_gib)
        return quietly(lease, task)

    run_study(quick_client, look, budget={"max_trials": 2, "max_pairs": 7})
    assert len(limits) > 2 and limits == [pytest.approx(3.8)] * len(limits)


def test_trial_that_trains_something_else_is_infeasible_however_fast(quick_client):
    """The diverging trial came first and was complete before the majority showed its fault."""
    study, trials = run_study(quick_client, only(0, measurement(99_000, loss=4.0)))
    assert study["state"] == "complete"
    assert trials[0]["state"] == "infeasible" and trials[0]["failure"]["kind"] == "numerics"
    assert study["result"]["best"]["trial_number"] != 0


def test_a_candidate_that_breaks_in_its_final_comparison_begins_it_anew(quick_client):
    observed = []

    def behave(lease, task):
        """The first candidate that is run again, after the four defaults, ends out of memory."""
        observed.append(lease.trial_number)
        if len(observed) > 12 and lease.trial_number > 3 and not broken:
            broken.append(len(observed))
            return failure(FailureKind.OOM)
        return well(lease, task)

    broken: list[int] = []
    study, trials = run_study(quick_client, behave)
    assert study["state"] == "complete"
    gone = observed[broken[0] - 1]
    assert trials[gone]["state"] == "infeasible"
    result = study["result"]
    assert gone not in (result["best"]["trial_number"], result["baseline"]["trial_number"])
    assert gone not in result["final_comparison"]["candidates"]
    # Which candidate breaks is drawn with the order of the block; those that are left are screened anew.
    anew = final_comparison.max_runs(len(result["final_comparison"]["candidates"]), FEWEST_PAIRS)
    assert result["verdict"] == "confirmed" and result["final_comparison"]["runs"] == broken[0] - 8 + 4 + anew


def test_validation_run_in_which_training_changed_is_not_counted(quick_client):
    observed = []

    def behave(lease, task):
        observed.append(lease.trial_number)
        return measurement(speed_of(task.config), loss=4.0 if len(observed) == 10 else 5.0)

    study, trials = run_study(quick_client, behave)
    assert trials[observed[9]]["failure"]["kind"] == "numerics"
    assert study["state"] == "complete" and study["result"]["best"]["trial_number"] != observed[9]


def test_no_winner_while_backends_disagree(quick_client):
    loss = {"ddp": 5.0, "zero": 4.0, "fsdp2": 3.0}
    study, _ = run_study(
        quick_client, lambda _, task: measurement(speed_of(task.config), loss=loss[task.config.backend])
    )
    assert study["state"] == "failed" and study["result"] is None
    assert study["reason"].startswith("no winner: no two backends train the same thing (trial 1 against trial 0: loss")
    assert study["reason_code"] == "no_agreement" and study["reason_details"].endswith("budget are used")
    assert "loss of step 0" in study["reason"]


def test_one_trial_alone_is_no_winner(quick_client):
    study, _ = run_study(quick_client, well, budget={"max_trials": 1})
    assert study["state"] == "failed" and "raise the budget" in study["reason"]


def test_single_backend_is_confirmed_by_another_configuration(quick_client):
    study, _ = run_study(quick_client, quietly, space={"backends": ["ddp"]})
    assert study["state"] == "complete" and study["result"]["speedup"] is not None


def test_only_feasible_backend_wins_with_a_note(quick_client):
    def only_zero(lease, task):
        return quietly(lease, task) if task.config.backend == "zero" else failure(FailureKind.OOM)

    study, _ = run_study(quick_client, only_zero, budget={"max_trials": 12})
    assert study["state"] == "complete", study["reason"]
    assert any("only configurations of backend zero are feasible" in note for note in study["result"]["notes"])


def test_study_without_a_feasible_configuration_fails_with_the_reason(quick_client):
    study, trials = run_study(quick_client, lambda *_: failure(FailureKind.OOM, "tried to allocate 9 GiB"))
    assert study["state"] == "failed"
    assert "8 ended as oom, the first with: tried to allocate 9 GiB" in study["reason"]
    assert study["reason_code"] == "nothing_feasible"
    assert [trial["state"] for trial in trials] == ["infeasible"] * 8


def test_model_that_cannot_fit_fails_before_any_trial(quick_client):
    """The lower bound of every configuration exceeds the memory of a rank."""
    tiny = CLUSTER.model_copy(update={"memory_gib": 0.001, "host_memory_gib": 0.002})
    study, trials = run_study(quick_client, well, cluster=tiny)
    assert study["state"] == "failed" and trials == [] and study["rejected"] > 0
    assert "needs at least" in study["reason"] and "are available" in study["reason"]
    rejections = quick_client.get(f"/v1/studies/{study['study_id']}/rejections").json()["rejections"]
    assert len(rejections) == study["rejected"] and rejections[0]["reason"]


@pytest.mark.parametrize(("kind", "attempts"), [("crash", 1), ("illegal", 1), ("setup", 2)])
def test_model_that_cannot_be_profiled_fails_the_study(quick_client, kind, attempts):
    worker = SimulatedWorker(quick_client).register()
    study_id = quick_client.post("/v1/studies", json=SPEC).json()["study_id"]
    for _ in range(attempts):
        worker.report(worker.lease(), failure(FailureKind(kind), "no such layer")).raise_for_status()
    study = quick_client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "failed" and "no such layer" in study["reason"]
    assert study["reason_code"] == "model_not_summarized"
    assert worker.lease() is None


def test_planner_that_breaks_fails_its_study_and_no_other(quick_client):
    """A profile without blocks gives the tuner nothing to compute with."""
    worker = SimulatedWorker(quick_client, behave=quietly).register()
    first = quick_client.post("/v1/studies", json=SPEC).json()["study_id"]
    worker.report(worker.lease(), MODEL_SUMMARY.model_copy(update={"blocks": ()})).raise_for_status()
    second = quick_client.post("/v1/studies", json=SPEC).json()["study_id"]
    worker.work()
    assert quick_client.get(f"/v1/studies/{first}").json()["state"] == "failed"
    assert quick_client.get(f"/v1/studies/{second}").json()["state"] == "complete"


def test_search_ends_on_gpu_seconds(quick_client):
    study, trials = run_study(quick_client, quietly, budget={"max_gpu_seconds": 30.0})
    # The profile and four trials of 6 s each: those with which every search begins, and no pair.
    assert len(trials) == 4 and "GPU-seconds" in study["reason"]
    assert study["state"] == "complete" and study["gpu_seconds"] == 30.0


def test_a_budget_too_small_for_one_trial_is_the_reason_and_not_what_fits(quick_client):
    study, trials = run_study(quick_client, well, budget={"max_gpu_seconds": 0.5})
    assert trials == [] and (study["state"], study["reason_code"]) == ("failed", "gpu_seconds_used")
    assert study["reason"].startswith("the budget of 0.5 GPU-seconds is used")


def test_search_ends_on_wall_time(quick_client, clock):
    def slow(lease, task):
        clock.turn(10)
        return quietly(lease, task)

    study, trials = run_study(quick_client, slow, budget={"max_wall_seconds": 60.0})
    # Four trials begin every search. Their runs say that 3 s are usual, and the comparison would take over 20 s.
    assert len(trials) == 4 and "budget.max_wall_seconds (60) is kept" in study["reason"]
    assert study["reason_code"] == "wall_seconds_used"


def test_default_budget_ends_when_further_gain_is_unlikely(quick_client):
    study, trials = run_study(quick_client, lambda *_: measurement(1000.0), budget={})
    assert 12 <= len(trials) < 40 and "gained less than" in study["reason"]
    assert study["reason_code"] == "little_gain"
    assert study["result"]["verdict"] == "not_faster"


def test_numbers_that_cannot_be_true_are_measured_again_and_never_win(after_doubtful_runs):
    study, trials = after_doubtful_runs
    assert study["state"] == "complete" and study["trials"] == {"complete": 6, "infeasible": 1, "failed": 1}
    assert "MFU of 310 %" in trials[0]["failure"]["message"]
    assert [attempt["end"] for attempt in trials[0]["runs"][0]["attempts"]] == ["suspect", "suspect"]
    assert study["result"]["best"]["trial_number"] != 0


def test_a_bad_device_is_the_platforms_fault(after_doubtful_runs):
    _, trials = after_doubtful_runs
    assert trials[1]["state"] == "complete"
    assert [attempt["end"] for attempt in trials[1]["runs"][0]["attempts"]] == ["device", "complete"]
