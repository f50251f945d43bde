"""Configurations of one study or of several side by side: only what was measured, with how far it may be off."""

import pytest

from shardtune.service.retuning import queue
from tests.flow.helpers.retuning_lab import ask
from tests.support.service.scenarios import best, tune

OTHER = {"workload": {"sequence_length": 64, "global_batch": 16}}


def compared(client, *picks):
    answer = client.get("/v1/comparisons", params={"pick": picks})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.answered
def test_answer_and_baseline_of_a_study_stand_side_by_side(quick_client):
    study = best(quick_client)["study_id"]
    result = quick_client.get(f"/v1/studies/{study}/best").json()
    winner, base = result["best"], result["baseline"]
    comparison = compared(quick_client, study, f"{study}:{base['trial_number']}")
    answer, baseline = comparison["configs"]
    assert (answer["trial_number"], baseline["is_baseline"], comparison["is_one_subject"]) == (
        winner["trial_number"],
        True,
        True,
    )
    assert answer["validation"]["tokens_per_s_per_gpu"] == pytest.approx(winner["tokens_per_s_per_gpu"])
    assert [answer["validation"]["low"], answer["validation"]["high"]] == winner["spread"]
    assert answer["search"]["low"] <= answer["search"]["tokens_per_s_per_gpu"] <= answer["search"]["high"]
    assert answer["speedup"] == result["speedup"] and baseline["speedup"] is None
    assert answer["peak_allocated_gib"] == winner["peak_allocated_gib"]
    assert 0 < answer["gpu_seconds"] < answer["study_gpu_seconds"]
    for difference in comparison["differences"]:
        assert len({repr(value) for value in difference["values"]}) == 2, difference
    assert comparison["differences"] != []


@pytest.mark.answered
def test_studies_of_different_workloads_are_no_ratio_of_each_other(quick_client):
    first, second = best(quick_client)["study_id"], tune(quick_client, worker="sim-2", **OTHER)
    listed = quick_client.get("/v1/recommendations").json()["recommendations"]
    # Of the same moment, since the clock stands still: in no order.
    key = next(recommendation["target_key"] for recommendation in listed if recommendation["study_id"] == second)
    comparison = compared(quick_client, first, second, key, "study-none")
    assert [side["study_id"] for side in comparison["configs"]] == [first, second, second]
    assert (comparison["is_one_subject"], comparison["not_found"]) == (False, ["study-none"])
    page = quick_client.get("/compare", params={"pick": [first, second]}, headers={"accept": "text/html"}).text
    assert "against the first" not in page and "cost of its study" in page


@pytest.mark.answered
def test_a_retune_is_compared_by_the_study_that_measured_it(quick_client, context, clock):
    served = best(quick_client)
    retune = ask(context, served["target_key"])
    assert compared(quick_client, retune)["not_found"] == [retune], "nothing is measured yet"
    queue.start_due(context, lambda *_: served["study_id"])
    (side,) = compared(quick_client, retune)["configs"]
    assert (side["study_id"], side["trial_number"]) == (served["study_id"], served["best"]["trial_number"])
