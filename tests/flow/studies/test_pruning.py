"""A trial of the search that ended early is measured, told as pruned, and no answer rests on it."""

import pytest

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import RunPurpose
from tests.support.service.scenarios import THREE_BACKENDS, run_study
from tests.support.service.simulated_worker import measurement, on_quiet_machine, speed_of

SLOW = 5
"""A trial after the four defaults."""
PRUNED = {"is_pruned": True, "measured_steps": 4, "step_time_half_width_s": 0.01}


def obedient(plans):
    """A worker on a quiet machine on which one trial is slow, and ends early where its plan says so; `plans` gets the plan of
    each task."""

    def behave(lease, task) -> Measurement:
        plans.append(task.plan)
        speed = speed_of(task.config) * (0.5 if lease.trial_number == SLOW else 1)
        new_measurement = on_quiet_machine(measurement(speed))
        above = task.plan.prune_above_s
        return (
            new_measurement.model_copy(update=PRUNED)
            if above is not None and new_measurement.step_time_s > above
            else new_measurement
        )

    return behave


def search_run(trial):
    return next(run for run in trial["runs"] if run["purpose"] == RunPurpose.SEARCH)


@pytest.fixture(scope="module")
def pruned_start(sqlite_after):
    """Database with a study of an obedient worker, the plans of its tasks, the study and its trials."""
    plans, ended = [], []

    def study_with_a_slow_trial(client):
        ended.append(run_study(client, obedient(plans), **THREE_BACKENDS))

    return sqlite_after(study_with_a_slow_trial), plans, *ended[0]


@pytest.fixture
def sqlite_start(request, sqlite_template):
    """Begin with that study where a test names it."""
    named = "pruned_start" in request.fixturenames
    return request.getfixturevalue("pruned_start")[0] if named else sqlite_template


def test_a_slow_trial_is_told_as_pruned_with_what_it_measured(quick_client, pruned_start):
    *_, study, trials = pruned_start
    pruned = [trial for trial in trials if trial["state"] == "pruned"]
    assert SLOW in [trial["number"] for trial in pruned] and study["trials"]["pruned"] == len(pruned)
    observed_measurement = search_run(pruned[0])["measurement"]
    assert (
        observed_measurement["is_pruned"]
        and pruned[0]["tokens_per_s_per_gpu"] == observed_measurement["tokens_per_s_per_gpu"] > 0
    )
    events = quick_client.get(f"/v1/studies/{study['study_id']}/events").json()["events"]
    assert sum(event["type"] == "trial.pruned" for event in events) == len(pruned)
    page = quick_client.get(f"/studies/{study['study_id']}/trials/{pruned[0]['number']}").text
    assert "Stopped after 4 timed steps" in page and ">pruned</span>" in page


def test_no_answer_rests_on_a_pruned_trial(pruned_start):
    _, plans, study, trials = pruned_start
    assert all(trial["origin"] == "sampler" for trial in trials if trial["state"] == "pruned")
    assert all(len(trial["runs"]) == 1 for trial in trials if trial["state"] == "pruned")
    fresh = study["result"]["final_comparison"]["runs"]
    assert fresh and all(plan.prune_above_s is None for plan in plans[-fresh:])
    assert study["result"]["verdict"] == "confirmed"


def test_a_study_that_wants_every_trial_timed_prunes_none(quick_client):
    plans = []
    study, _ = run_study(quick_client, obedient(plans), budget={"max_trials": 8, "prune": False}, **THREE_BACKENDS)
    assert "pruned" not in study["trials"] and all(plan.prune_above_s is None for plan in plans)


def disturbed_at(numbers, plans, attempts=99, foreign=1.5):
    """A worker on which the search runs of these trials, in their first `attempts` attempts, are half as fast because
    other programs keep 1.5 of 2 cores busy, and end early where their plan says so."""

    def behave(lease, task) -> Measurement:
        plans.append((lease.trial_number, lease.attempt, task.plan.prune_above_s))
        is_disturbed = lease.trial_number in numbers and lease.attempt <= attempts
        new_measurement = on_quiet_machine(measurement(speed_of(task.config) * (0.4 if is_disturbed else 1)))
        conditions = Conditions(foreign_cpu_cores=foreign if is_disturbed else 0.0)
        above = task.plan.prune_above_s
        early = PRUNED if above is not None and new_measurement.step_time_s > above else {}
        return new_measurement.model_copy(update={"conditions": conditions, **early})

    return behave


SAMPLED = {4, 5, 6, 7}


@pytest.mark.parametrize("repeat_disturbed", [0.5, 0.0, 3.0])
def test_a_disturbed_run_is_never_pruned(quick_client, repeat_disturbed):
    plans = []
    budget = {"max_trials": 8, "repeat_disturbed": repeat_disturbed, "max_pairs": 7}
    study, trials = run_study(quick_client, disturbed_at(SAMPLED, plans), budget=budget, **THREE_BACKENDS)
    # Where nothing is repeated, a disturbed run that ended early would count: no run may end early there.
    assert any(prune_above is not None for _, _, prune_above in plans) == (repeat_disturbed > 0)
    assert {trial["state"] for trial in trials if trial["number"] in SAMPLED} == {"complete"}
    counting = [search_run(trials[number])["measurement"] for number in SAMPLED]
    assert all(run["disturbed"] == "other programs kept 1.5 of 2 cores busy" for run in counting)
    # Timed in full where it is repeated at all: the second attempt at a run never ends early.
    assert all(prune_above is None for _, attempt, prune_above in plans if attempt > 1)
    assert not any(run["is_pruned"] for run in counting), "a complete trial was measured in full"
    result = study["result"]
    assert (result["search_runs"], result["disturbed_search_runs"]) == (8, 4)


def test_a_run_that_was_disturbed_once_is_timed_in_full_afterwards(quick_client):
    plans = []
    _, trials = run_study(quick_client, disturbed_at(SAMPLED, plans, attempts=1), **THREE_BACKENDS)
    assert "pruned" not in {trials[number]["state"] for number in SAMPLED}
    assert all(search_run(trials[number])["measurement"]["disturbed"] is None for number in SAMPLED)


def test_a_disturbed_run_prunes_no_other(quick_client):
    """Every trial before the sampler's is disturbed, so that there is no speed that could make another surely slower."""
    plans = []
    run_study(quick_client, disturbed_at(set(range(8)), plans), budget={"max_trials": 8}, **THREE_BACKENDS)
    assert len(plans) > 8 and all(prune_above is None for _, _, prune_above in plans)
