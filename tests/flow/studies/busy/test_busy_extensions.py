"""Extensions on a busy machine: repeats, pairs that are added, and the earlier answer."""

from shardtune.api_schemas.trials.measurements import Memory
from shardtune.db.queries.best import get_target
from shardtune.service.canaries.reference import reference_of
from tests.flow.studies.busy.busy_studies import beside, bursts, compared, newest_decision, studied
from tests.support.service.scenarios import ASK


def test_an_added_pair_that_is_disturbed_too_leaves_the_machine_too_busy(quick_client):
    worker, study = studied(quick_client, beside(lambda: 1.0))
    quick_client.post(f"/v1/studies/{study['study_id']}:extend", json={"add_pairs": 2}).raise_for_status()
    worker.work(400)
    result = quick_client.get(f"/v1/studies/{study['study_id']}").json()["result"]
    assert (result["verdict"], result["final_comparison"]["pairs"]) == ("too_busy", 9)


def test_a_burst_in_an_extension_is_repeated_although_the_load_was_steady_before(quick_client):
    worker, study = studied(quick_client, beside(lambda: 1.0))
    loads = iter([1.0])
    worker.behave = beside(lambda: next(loads, 0.0))
    quick_client.post(f"/v1/studies/{study['study_id']}:extend", json={"add_pairs": 1}).raise_for_status()
    worker.work(400)
    result = quick_client.get(f"/v1/studies/{study['study_id']}").json()["result"]
    compared = result["final_comparison"]
    assert (result["verdict"], compared["pairs"], compared["uneven_pairs"]) == ("confirmed", 8, 0)


def test_pairs_that_are_added_while_others_run_are_run_too(quick_client):
    worker, study = studied(quick_client, beside(lambda: 1.0))
    for pairs in (1, 2):
        quick_client.post(f"/v1/studies/{study['study_id']}:extend", json={"add_pairs": pairs}).raise_for_status()
    worker.work(400)
    result = quick_client.get(f"/v1/studies/{study['study_id']}").json()["result"]
    assert (result["verdict"], result["final_comparison"]["pairs"]) == ("too_busy", 10)


def served(client):
    """What training jobs get, without its age."""
    return {name: value for name, value in client.get("/v1/best", params=ASK).json().items() if name != "age_s"}


def reference_speed(client, target_key):
    """Speed with which canaries of the recommendation are compared."""
    with client.app.state.context.db.read() as session:
        row = get_target(session, "default", target_key)
        return reference_of(session, row, row.recommended).reference


def test_a_confirmed_answer_outlasts_an_extension_on_a_busy_machine(quick_client):
    worker, study = studied(quick_client, beside(lambda: 0.0))
    url, best = f"/v1/studies/{study['study_id']}", served(quick_client)
    assert study["result"]["verdict"] == best["verdict"] == "confirmed"
    speed, shown = reference_speed(quick_client, best["target_key"]), compared(quick_client, best["target_key"])
    worker.behave = bursts()
    quick_client.post(f"{url}:extend", json={"add_trials": 3}).raise_for_status()
    worker.work(400)
    extended = quick_client.get(url).json()
    before, after = study["result"], extended["result"]
    assert (extended["state"], after["final_comparison"]["number"]) == ("complete", 1)
    for field in ("verdict", "best", "baseline", "speedup", "too_busy"):
        assert after[field] == before[field]
    assert after["later_too_busy"]["disturbed_runs"] > 0 and before["later_too_busy"] is None
    assert after["search_runs"] > before["search_runs"] and after["disturbed_search_runs"] > 0
    assert after["final_comparison"]["runs"] > before["final_comparison"]["runs"], "the cost is that of all comparisons"
    assert served(quick_client) == best and best["confidence"]["level"] == "high"
    assert quick_client.get(f"{url}/best").json() == after
    assert reference_speed(quick_client, best["target_key"]) == speed, "canaries are not compared with disturbed runs"
    assert compared(quick_client, best["target_key"]) == shown
    (kept,) = quick_client.get("/v1/recommendations").json()["recommendations"]
    assert (kept["state"], kept["answer"]["result"]) == ("recommended", before)
    decision = newest_decision(quick_client, best["target_key"])
    assert decision["action"] == "inconclusive" and "too busy to compare again" in decision["note"]
    page = quick_client.get(f"/studies/{study['study_id']}").text
    assert "so its confirmed answer stays" in page and "recommended</span>" in page and "too_busy" not in page
    assert "enough for the verdict" not in page, "the runs of the newest comparison decided nothing"
    # A quiet machine renews the verdict as ever.
    worker.behave = beside(lambda: 0.0)
    quick_client.post(f"{url}:extend", json={"add_trials": 2}).raise_for_status()
    worker.work(400)
    renewed = quick_client.get(url).json()["result"]
    assert (renewed["verdict"], renewed["later_too_busy"]) == ("confirmed", None)
    assert served(quick_client)["recommendation_id"] != best["recommendation_id"]


def test_pairs_that_are_added_after_a_busy_extension_run_although_its_pairs_ended_the_test(quick_client):
    worker, study = studied(quick_client, beside(lambda: 0.0))
    url = f"/v1/studies/{study['study_id']}"
    worker.behave = beside(lambda: 1.0)
    quick_client.post(f"{url}:extend", json={"add_trials": 2}).raise_for_status()
    worker.work(400)
    busy = quick_client.get(url).json()["result"]
    assert (busy["verdict"], busy["later_too_busy"]["missing_runs"]) == ("confirmed", 2)
    worker.behave = beside(lambda: 0.0)
    quick_client.post(f"{url}:extend", json={"add_pairs": 1}).raise_for_status()
    worker.work(400)
    renewed = quick_client.get(url).json()["result"]
    compared = renewed["final_comparison"]
    assert (renewed["verdict"], renewed["later_too_busy"], compared["pairs"]) == ("confirmed", None, 8)
    assert compared["number"] > study["result"]["final_comparison"]["number"]


def test_a_confirmed_answer_whose_trial_became_infeasible_does_not_stay(quick_client):
    worker, study = studied(quick_client, beside(lambda: 0.0))
    best, busy = study["result"]["best"]["trial_number"], bursts()

    def behave(lease, task):
        run = busy(lease, task)
        is_of_best = lease.trial_number == best
        return run.model_copy(update={"memory": Memory(peak_allocated_gib=9.0)}) if is_of_best else run

    worker.behave = behave
    url = f"/v1/studies/{study['study_id']}"
    quick_client.post(f"{url}:extend", json={"add_trials": 3}).raise_for_status()
    worker.work(400)
    result = quick_client.get(url).json()["result"]
    assert result["verdict"] == "too_busy" and result["later_too_busy"] is None
    assert result["best"]["trial_number"] != best
