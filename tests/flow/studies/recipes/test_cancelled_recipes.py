"""A study that is cancelled while it compares recipes has its answer already, and completes with it."""

import pytest

from shardtune.api_schemas.trials.leases import TrialTask
from tests.flow.studies.recipes.recipe_studies import NEW, create, first_recipe_run, is_recipe_run, of_recipe
from tests.support.service.simulated_worker import SimulatedWorker


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_study_cancelled_during_a_recipe_run_completes_with_its_known_answer(quick_client, is_paused):
    """Its answer was lost with the run."""
    worker = SimulatedWorker(quick_client, behave=lambda _, task: of_recipe(task), **NEW).register()
    study_id = create(quick_client, consider=["bf16-true"])
    lease = first_recipe_run(quick_client, worker)
    if is_paused:
        quick_client.post(f"/v1/studies/{study_id}:pause").raise_for_status()
    study = quick_client.post(f"/v1/studies/{study_id}:cancel").raise_for_status().json()
    assert (study["state"], study["result"]["recipes"]) == ("complete", [])
    assert study["result"]["verdict"] in ("confirmed", "not_faster", "undecided")
    (note,) = [note for note in study["result"]["notes"] if "recipes" in note]
    assert note == "recipes (bf16-true) were not compared: the study was cancelled by its user"
    assert worker.report(lease, of_recipe(lease.task)).status_code == 409, "its run was taken from the worker"
    assert worker.lease() is None


def test_recipes_that_were_compared_before_stay_in_the_answer(quick_client):
    worker = SimulatedWorker(quick_client, behave=lambda _, task: of_recipe(task), **NEW).register()
    study_id = create(quick_client, consider=["bf16-true"])
    lease = first_recipe_run(quick_client, worker)
    for _ in range(2):
        assert isinstance(lease.task, TrialTask) and is_recipe_run(quick_client, lease)
        worker.do(lease)
        lease = worker.lease()
    study = quick_client.post(f"/v1/studies/{study_id}:cancel").raise_for_status().json()
    (recipe,) = study["result"]["recipes"]
    assert study["state"] == "complete" and recipe["name"] == "bf16-true"
    assert recipe["stated_tokens_per_s_per_gpu"] is not None
