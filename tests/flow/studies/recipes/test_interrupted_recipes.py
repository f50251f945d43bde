"""Recipes whose runs fail or lose their workers: what is kept, and what the answer says."""

import random

import pytest

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TASK_KINDS
from shardtune.service.lifecycle import expiry
from tests.flow.studies.recipes.recipe_studies import NEW, create, first_recipe_run, is_recipe_run, of_recipe, recipe_of
from tests.support.service.simulated_worker import (
    SimulatedWorker,
    failure,
)


def test_a_recipe_that_fails_is_said_so_and_changes_nothing(quick_client):
    def behave(_lease, task):
        return failure(FailureKind.OOM, "no memory for fp32") if recipe_of(task) == "fp32" else of_recipe(task)

    worker = SimulatedWorker(quick_client, behave=behave, **NEW).register()
    study_id = create(quick_client, consider=["fp32", "bf16-true"])
    worker.work()
    study = quick_client.get(f"/v1/studies/{study_id}").json()
    exact, true = study["result"]["recipes"]
    assert study["state"] == "complete" and "no memory for fp32" in exact["failure"] and exact["loss"] is None
    assert true["failure"] is None and true["loss"]["verdict"] == "worse"
    number = study["result"]["best"]["trial_number"]
    trial = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"][number]
    assert trial["state"] == "complete", "the answer stands"


def test_without_the_stated_recipes_run_nothing_is_compared(quick_client):
    def behave(_lease, task):
        fails = task.plan.loss_steps and recipe_of(task) == "bf16-mixed"
        return failure(FailureKind.NUMERICS, "loss is nan at step 7") if fails else of_recipe(task)

    worker = SimulatedWorker(quick_client, behave=behave, **NEW).register()
    study_id = create(quick_client, consider=["bf16-true"])
    worker.work()
    (recipe,) = quick_client.get(f"/v1/studies/{study_id}/best").json()["recipes"]
    assert "the stated recipe's run failed: loss is nan at step 7" in recipe["failure"]


@pytest.mark.parametrize(
    ("recipe", "words"), [("bf16-true", "no memory"), ("bf16-mixed", "stated recipe's run failed")]
)
def test_a_recipe_that_fails_after_its_first_pairs_keeps_them_and_says_so(quick_client, recipe, words):
    compared = []

    def behave(lease, task):
        if not is_recipe_run(quick_client, lease):
            return of_recipe(task)
        compared.append(recipe_of(task))
        failed = failure(FailureKind.OOM, "no memory")
        return failed if len(compared) > 4 and recipe_of(task) == recipe else of_recipe(task)

    worker = SimulatedWorker(quick_client, behave=behave, **NEW).register()
    study_id = create(quick_client, consider=["bf16-true"])
    worker.work()
    (summary,) = quick_client.get(f"/v1/studies/{study_id}/best").json()["recipes"]
    assert words in summary["failure"] and len(summary["ratios"]) == 2 and summary["loss"]["verdict"] == "worse"
    page = quick_client.get(f"/studies/{study_id}").text
    assert "failed after 2 pairs, whose figures are below" in page and "not compared" not in page


@pytest.mark.wide_on_postgres
def test_a_worker_that_dies_in_a_recipe_run_is_replaced_and_the_comparison_goes_on(client, clock):
    worker = SimulatedWorker(client, behave=lambda _, task: of_recipe(task), **NEW).register()
    study_id = create(client, consider=["bf16-true"])
    lost = first_recipe_run(client, worker)
    context = client.app.state.context
    clock.turn(context.settings.lease_s + 1)
    assert expiry.sweep(context) == 1
    again = SimulatedWorker(client, behave=lambda _, task: of_recipe(task), **NEW).register()
    lease = again.lease()
    assert (lease.run_id, lease.attempt) == (lost.run_id, 2)
    again.do(lease)
    again.work()
    (recipe,) = client.get(f"/v1/studies/{study_id}/best").json()["recipes"]
    assert recipe["loss"]["verdict"] == "worse" and recipe["speed"]["value"] == pytest.approx(1.3)


def test_losses_compare_although_the_first_block_is_lost_to_a_dead_worker(quick_client, clock):
    worker = SimulatedWorker(quick_client, behave=lambda _, task: of_recipe(task), **NEW).register()
    study_id = create(quick_client, consider=["bf16-true", "fp32"])
    worker.do(first_recipe_run(quick_client, worker))
    clock.turn(3600)
    kept = []

    def behave(lease, task):
        if is_recipe_run(quick_client, lease) and task.plan.loss_steps:
            kept.append(recipe_of(task))
        return of_recipe(task)

    SimulatedWorker(quick_client, "other", behave, **NEW).register().work()
    recipes = quick_client.get(f"/v1/studies/{study_id}/best").json()["recipes"]
    assert [recipe["loss"]["verdict"] for recipe in recipes] == ["worse", "as_well"]
    assert [len(recipe["ratios"]) >= 3 for recipe in recipes] == [True, True] and len(kept) == 2


@pytest.mark.parametrize("runs", [2, 5])
def test_recipes_that_ran_keep_their_figures_where_no_worker_is_left_for_more(quick_client, clock, runs):
    worker = SimulatedWorker(quick_client, behave=lambda _, task: of_recipe(task), **NEW).register()
    study_id = create(quick_client, consider=["bf16-true"])
    lease = first_recipe_run(quick_client, worker)
    for _ in range(runs - 1):
        worker.do(lease)
        lease = worker.lease()
    worker.do(lease)
    clock.turn(3600)
    kinds = tuple(kind for kind in TASK_KINDS if kind != "recipe")
    SimulatedWorker(quick_client, "old", lambda _, task: of_recipe(task), task_kinds=kinds).register().work()
    result = quick_client.get(f"/v1/studies/{study_id}/best").json()
    (recipe,) = result["recipes"]
    assert recipe["loss"]["verdict"] == "worse" and len(recipe["ratios"]) == runs // 2
    assert not any("were not compared" in note for note in result["notes"])


def test_a_machine_too_busy_for_a_verdict_compares_no_recipes_until_an_extension_finds_it_quiet(quick_client):
    draw, is_busy = random.Random(1), True

    def behave(_lease, task):
        if not is_busy:
            return of_recipe(task)
        foreign = draw.choice((0.5, 1.0, 1.5))
        run = of_recipe(task)
        speed = run.tokens_per_s_per_gpu * (2 - foreign) / 2
        return run.model_copy(
            update={"tokens_per_s_per_gpu": speed, "conditions": Conditions(foreign_cpu_cores=foreign)}
        )

    worker = SimulatedWorker(quick_client, behave=behave, **NEW).register()
    baseline = {"strategy": {"kind": "ddp"}, "micro_batch": 1}
    study_id = create(
        quick_client, consider=["bf16-true"], baseline=baseline, budget={"max_trials": 4, "max_pairs": 12}
    )
    worker.work(400)
    study = quick_client.get(f"/v1/studies/{study_id}").json()
    trials = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    assert study["result"]["verdict"] == "too_busy" and study["result"]["recipes"] == []
    assert not any(run["purpose"] == "recipe" for trial in trials for run in trial["runs"])
    assert any("(bf16-true) were not compared: the machine was too busy" in note for note in study["result"]["notes"])
    is_busy = False
    quick_client.post(f"/v1/studies/{study_id}:extend", json={"add_pairs": 12}).raise_for_status()
    worker.work(400)
    result = quick_client.get(f"/v1/studies/{study_id}/best").json()
    assert result["verdict"] != "too_busy" and result["recipes"][0]["loss"]["verdict"] == "worse"
    assert not any("were not compared" in note for note in result["notes"])
