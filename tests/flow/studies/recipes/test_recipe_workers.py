"""Workers that cannot run a recipe: of an older release, without its package, or with too few losses."""

import pytest

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TASK_KINDS
from tests.flow.studies.recipes.recipe_studies import NEW, STEPS, create, first_recipe_run, of_recipe, recipe_of
from tests.support.service.simulated_worker import (
    SimulatedWorker,
    failure,
)


def test_a_worker_that_reports_too_few_losses_costs_the_comparison_alone(quick_client):
    def behave(_lease, task):
        return of_recipe(task, losses=(5.0,) * 5) if task.plan.loss_steps else of_recipe(task)

    worker = SimulatedWorker(quick_client, behave=behave, **NEW).register()
    study_id = create(quick_client, consider=["bf16-true"])
    worker.work()
    (recipe,) = quick_client.get(f"/v1/studies/{study_id}/best").json()["recipes"]
    assert recipe["loss"] is None and recipe["speed"]["value"] == pytest.approx(1.3)
    assert recipe["notes"] == [f"losses of 5 steps were reported, of {STEPS} asked for"]


@pytest.mark.parametrize("recipe", ["bf16-mixed", "bf16-true"])
def test_a_note_says_which_run_reported_too_few_losses(quick_client, recipe):
    def behave(_lease, task):
        is_short = task.plan.loss_steps and recipe_of(task) == recipe
        return of_recipe(task, losses=(5.0,) * 5) if is_short else of_recipe(task)

    worker = SimulatedWorker(quick_client, behave=behave, **NEW).register()
    study_id = create(quick_client, consider=["bf16-true"])
    worker.work()
    (summary,) = quick_client.get(f"/v1/studies/{study_id}/best").json()["recipes"]
    by_stated = " by the stated recipe's run" if recipe == "bf16-mixed" else ""
    assert summary["loss"] is None
    assert summary["notes"] == [f"losses of 5 steps were reported{by_stated}, of {STEPS} asked for"]


def test_workers_of_an_older_release_get_no_recipe_run_and_the_answer_says_so(quick_client):
    kinds = tuple(kind for kind in TASK_KINDS if kind != "recipe")
    worker = SimulatedWorker(quick_client, behave=lambda _, task: of_recipe(task), task_kinds=kinds).register()
    study_id = create(quick_client, consider=["bf16-true"])
    worker.work()
    study = quick_client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete" and study["result"]["recipes"] == []
    assert any("no live worker knows such runs" in note for note in study["result"]["notes"])


PACKAGES = {"fp8": {"float8": ("tensorwise",)}, "adamw-8bit": {"optimizers": ("adamw-8bit",)}}


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_worker_without_the_package_of_a_recipe_gets_none_of_its_runs(quick_client, name):
    """It may run the rest of the study; runs of one comparison stay on one worker, those of the stated recipe too."""
    lacking, able = (
        SimulatedWorker(quick_client, name=label, behave=lambda _, task: of_recipe(task), **NEW, **offered).register()
        for label, offered in (("lacking", {}), ("able", PACKAGES[name]))
    )
    study_id = create(quick_client, consider=[name])
    lease = first_recipe_run(quick_client, able)
    able.report(lease, failure(FailureKind.WORKER_LOST)).raise_for_status()
    assert lacking.lease() is None
    again = able.lease()
    assert again is not None and again.run_id == lease.run_id, "whatever the other was told"
    able.do(again)
    able.work()
    (recipe,) = quick_client.get(f"/v1/studies/{study_id}").json()["result"]["recipes"]
    assert recipe["failure"] is None


@pytest.mark.wide_on_postgres
def test_recipes_are_left_out_where_the_only_worker_with_their_package_has_gone(client, clock):
    lacking, able = (
        SimulatedWorker(client, name=label, behave=lambda _, task: of_recipe(task), **NEW, **offered).register()
        for label, offered in (("lacking", {}), ("able", PACKAGES["fp8"]))
    )
    study_id = create(client, consider=["fp8"])
    lease = first_recipe_run(client, able)
    able.report(lease, failure(FailureKind.WORKER_LOST)).raise_for_status()
    clock.turn(1000)
    lacking.work()
    study = client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete"
    assert any("has the packages of all recipes" in note for note in study["result"]["notes"])
