"""A trial of the search that ended early is measured, told as pruned, and no answer rests on it."""

from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import RunPurpose
from tests.support.service.scenarios import THREE_BACKENDS, run_study
from tests.support.service.simulated_worker import measurement, speed_of

SLOW = 5
"""A trial after the four defaults."""
PRUNED = {"is_pruned": True, "measured_steps": 4, "step_time_half_width_s": 0.01}


def obedient(plans):
    """A worker on which one trial is slow, and ends early where its plan says so; `plans` gets the plan of each task."""

    def behave(lease, task) -> Measurement:
        plans.append(task.plan)
        new_measurement = measurement(speed_of(task.config) * (0.5 if lease.trial_number == SLOW else 1))
        above = task.plan.prune_above_s
        return (
            new_measurement.model_copy(update=PRUNED)
            if above is not None and new_measurement.step_time_s > above
            else new_measurement
        )

    return behave


def search_run(trial):
    return next(run for run in trial["runs"] if run["purpose"] == RunPurpose.SEARCH)


def test_a_slow_trial_is_told_as_pruned_with_what_it_measured(quick_client):
    study, trials = run_study(quick_client, obedient([]), **THREE_BACKENDS)
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


def test_no_answer_rests_on_a_pruned_trial(quick_client):
    plans = []
    study, trials = run_study(quick_client, obedient(plans), **THREE_BACKENDS)
    assert all(trial["origin"] == "sampler" for trial in trials if trial["state"] == "pruned")
    assert all(len(trial["runs"]) == 1 for trial in trials if trial["state"] == "pruned")
    fresh = study["result"]["final_comparison"]["runs"]
    assert fresh and all(plan.prune_above_s is None for plan in plans[-fresh:])
    assert study["result"]["verdict"] == "confirmed"


def test_a_study_that_wants_every_trial_timed_prunes_none(quick_client):
    plans = []
    study, _ = run_study(quick_client, obedient(plans), budget={"max_trials": 8, "prune": False}, **THREE_BACKENDS)
    assert "pruned" not in study["trials"] and all(plan.prune_above_s is None for plan in plans)
