"""Recipes that are left out because they would delay a known answer: the note names the run that found no time."""

from shardtune.api_schemas.trials.leases import Lease
from tests.flow.studies.recipes.recipe_studies import CONSIDERING, NEW, create, of_recipe
from tests.support.service.simulated_worker import SimulatedWorker


def test_the_note_says_that_the_sustained_run_found_no_time(quick_client):
    """It read as if the recipes were too long for the worker, and advised fewer seconds of another run."""
    worker = SimulatedWorker(quick_client, behave=lambda _, task: of_recipe(task), **NEW).register()
    study_id = create(
        quick_client, consider=["bf16-true"], budget=CONSIDERING["budget"] | {"sustained_run_s": 1000.0}
    )  # fmt: skip
    while (answer := worker.post("/v1/leases", {"wait_s": 0, "ends_in_s": 900.0})).status_code == 200:
        worker.do(Lease.model_validate(answer.json()))
    study = quick_client.get(f"/v1/studies/{study_id}").json()
    assert (study["state"], study["result"]["sustained"]["outcome"]) == ("complete", "left_out")
    (note,) = [note for note in study["result"]["notes"] if "recipes" in note]
    assert note.startswith(
        "recipes (bf16-true) were not compared: the sustained run was left out, and no other optional run may delay the "
        "answer: the worker's allocation ends before it could finish; "
    )
