"""A study whose verdict would rest on disturbed runs says that the machine was too busy."""

import random

import pytest

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.trials.measurements import Memory
from shardtune.tuner.verdict.disturbance import MAX_DISCARDED_IN_A_ROW
from tests.flow.studies.busy.busy_studies import beside, bursts, studied
from tests.support.service.scenarios import ASK
from tests.support.service.simulated_worker import SPEC, measurement


@pytest.mark.wide_on_postgres
@pytest.mark.parametrize("repeat_disturbed", [0, 0.5])
def test_bursts_of_other_programs_end_in_too_busy_with_their_names_and_the_missing_runs(client, repeat_disturbed):
    budget = {"max_trials": 4, "repeat_disturbed": repeat_disturbed}
    _, study = studied(client, bursts(), budget=budget)
    result = study["result"]
    assert (result["verdict"], result["undecided"]) == ("too_busy", None)
    assert result["best"] == result["baseline"], "a user's baseline is kept"
    busy = result["too_busy"]
    assert busy["rests_on"] == "pairs" and busy["disturbed_runs"] == busy["runs"] > 2 * busy["uneven_pairs"] - 1
    assert busy["programs"] == [{"name": "clang", "cores": 0.9}, {"name": "chrome", "cores": 0.4}]
    assert busy["foreign_cpu_cores"] in (0.5, 0.75, 1.0, 1.25, 1.5)
    even_pairs = busy["runs"] // 2 - busy["uneven_pairs"]
    assert busy["uneven_pairs"] == 12, "half of the 24 pairs that the budget allows"
    assert even_pairs == result["final_comparison"]["pairs"] and busy["missing_runs"] == 2 * max(1, 7 - even_pairs)
    trials = client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    repeats = [
        a["end"] for trial in trials for run in trial["runs"] for a in run["attempts"] if a["end"] == "disturbed"
    ]
    assert bool(repeats) == (repeat_disturbed > 0)


@pytest.mark.wide_on_postgres
def test_pairs_under_steady_equal_load_need_one_on_a_quiet_machine_and_lower_the_confidence(client):
    worker, study = studied(client, beside(lambda: 1.0))
    result = study["result"]
    assert result["verdict"] == "too_busy" and result["final_comparison"]["uneven_pairs"] == 0
    trials = client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    ends = [attempt["end"] for trial in trials for run in trial["runs"] for attempt in run["attempts"]]
    assert ends.count("disturbed") == MAX_DISCARDED_IN_A_ROW, "a load that stays is met again by every repeat"
    # The pairs have decided the test, but only an undisturbed one can confirm: the advised pair has to run.
    assert (result["final_comparison"]["pairs"], result["too_busy"]["missing_runs"]) == (7, 2)
    worker.behave = beside(lambda: 0.0)
    client.post(f"/v1/studies/{study['study_id']}:extend", json={"add_pairs": 1}).raise_for_status()
    worker.work(400)
    extended = client.get(f"/v1/studies/{study['study_id']}").json()["result"]
    assert (extended["verdict"], extended["final_comparison"]["pairs"]) == ("confirmed", 8)


def test_a_run_over_the_memory_limit_shows_no_quiet_machine(quick_client):
    """It has a measurement, but nobody judged its load: the count of discarded runs began anew with it."""
    busy = beside(lambda: 1.0)

    def behave(lease, task):
        run = busy(lease, task)
        is_too_large = lease.trial_number == 2
        return run.model_copy(update={"memory": Memory(peak_allocated_gib=9.0)}) if is_too_large else run

    _, study = studied(quick_client, behave)
    trials = quick_client.get(f"/v1/studies/{study['study_id']}/trials").json()["trials"]
    ends = [attempt["end"] for trial in trials for run in trial["runs"] for attempt in run["attempts"]]
    assert "over_limit" in ends and ends.count("disturbed") == MAX_DISCARDED_IN_A_ROW


@pytest.mark.wide_on_postgres
def test_a_gain_with_most_pairs_under_steady_equal_load_has_less_confidence(client):
    loads = iter([0.0] * 20)
    _, study = studied(client, beside(lambda: next(loads, 1.0)))
    result = study["result"]
    assert (result["verdict"], result["too_busy"]) == ("confirmed", None)
    assert result["final_comparison"]["disturbed_counted_runs"] > 0
    confidence = client.get("/v1/best", params=ASK).json()["confidence"]
    assert confidence["level"] == "medium" and "disturbed" in confidence["reasons"][0]


@pytest.mark.wide_on_postgres
def test_a_search_on_a_busy_machine_does_not_claim_that_nothing_is_faster(client):
    """The machine gets quiet for the final comparison, whose candidates a disturbed search chose."""
    draw = random.Random(3)

    def behave(lease, task):
        searched.append(lease.trial_number)
        foreign = draw.choice((0.4, 1.1, 1.6)) if len(searched) <= 8 else 0.0
        run = measurement(1000.0 if foreign == 0 else 1000.0 - foreign)
        return run.model_copy(update={"conditions": Conditions(foreign_cpu_cores=foreign)})

    searched = []
    _, study = studied(client, behave, budget=SPEC["budget"] | {"repeat_disturbed": 0})
    busy = study["result"]["too_busy"]
    assert study["result"]["verdict"] == "too_busy" and busy["rests_on"] == "search"
    assert busy["disturbed_runs"] == busy["runs"] == 8 == busy["missing_runs"]
