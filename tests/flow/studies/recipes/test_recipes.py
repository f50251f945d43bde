"""Considered recipes: run beside the answer, never the answer."""

import pytest
from pydantic import TypeAdapter

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.pages.views import best
from shardtune.service.wording.progress import time_left
from tests.flow.studies.recipes.recipe_studies import CONSIDERING, NEW, STEPS, WORKLOAD, create, of_recipe, recipe_of
from tests.support.service.simulated_worker import (
    SimulatedWorker,
)


@pytest.mark.wide_on_postgres
def test_recipes_stand_beside_the_answer_with_speed_and_losses(client):
    """Windows of unknown spread, so that all recipes have as many pairs."""
    worker = SimulatedWorker(
        client, behave=lambda _, task: of_recipe(task, step_time_half_width_s=0.0), **NEW
    ).register()
    study_id = create(client, consider=["bf16-true", "fp32"])
    worker.work()
    study = client.get(f"/v1/studies/{study_id}").json()
    result, alone = study["result"], create(client)
    true, exact = result["recipes"]
    assert (true["name"], true["loss"]["verdict"], true["is_winners_config"]) == ("bf16-true", "worse", True)
    assert true["loss"]["difference"] == pytest.approx(0.3) and true["loss"]["steps"] == STEPS
    assert true["speed"]["value"] == pytest.approx(1.3) and exact["speed"]["value"] == pytest.approx(0.5)
    assert exact["loss"]["verdict"] == "as_well" and exact["failure"] is None
    runs = [
        run
        for trial in client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
        for run in trial["runs"]
        if run["purpose"] == "recipe"
    ]
    blocks = {run["comparison_block"] for run in runs}
    assert (
        len(blocks) >= 3
        and len(runs) == 3 * len(blocks)
        and {run["recipe"] for run in runs} == {None, "bf16-true", "fp32"}
    )
    worker.work()
    without = client.get(f"/v1/studies/{alone}").json()["result"]
    assert without["best"]["config"] == result["best"]["config"] and without["recipes"] == []
    ask = {"model": "llama-tiny", "cluster": study["cluster"], "workload": WORKLOAD}
    best = client.post("/v1/best:resolve", json={"study": CONSIDERING | {"model": ask["model"]}}).json()["best"]
    assert best["workload"]["precision"]["name"] == "bf16-mixed", "never another recipe"


def test_the_first_run_of_each_recipe_alone_trains_the_steps_whose_losses_compare(quick_client):
    plans = []

    def behave(_lease, task):
        plans.append((recipe_of(task), task.plan.loss_steps, task.plan.short_steps))
        return of_recipe(task)

    worker = SimulatedWorker(quick_client, behave=behave, **NEW).register()
    create(quick_client, consider=["bf16-true"])
    worker.work()
    kept = [(name, steps) for name, steps, _ in plans if steps]
    assert sorted(kept) == [("bf16-mixed", STEPS), ("bf16-true", STEPS)] and all(short is None for *_, short in plans)


def test_muon_takes_the_fastest_trial_that_can_train_with_it(quick_client):
    slow_fsdp2 = {"ddp": 1.0, "zero": 2.0, "fsdp2": 0.5}

    def behave(_lease, task):
        measured = of_recipe(task)
        speed = measured.tokens_per_s_per_gpu * slow_fsdp2[task.config.backend]
        return measured.model_copy(update={"tokens_per_s_per_gpu": speed})

    worker = SimulatedWorker(quick_client, behave=behave, **NEW).register()
    study_id = create(quick_client, consider=["muon"])
    worker.work()
    result = quick_client.get(f"/v1/studies/{study_id}/best").json()
    (muon,) = result["recipes"]
    assert result["best"]["config"]["strategy"]["kind"] == "zero"
    assert muon["config"]["strategy"]["kind"] == "ddp" and not muon["is_winners_config"]
    assert any("cannot train with Muon" in note for note in muon["notes"])


def test_stochastic_rounding_runs_in_its_precision_and_the_answer_stays_in_the_stated_one(quick_client):
    trained = set()

    def behave(_lease, task):
        trained.add((task.workload.precision.name, task.workload.optimizer.kind))
        return of_recipe(task)

    worker = SimulatedWorker(quick_client, behave=behave, **NEW).register()
    study_id = create(quick_client, consider=["adamw-bf16"])
    worker.work()
    study = quick_client.get(f"/v1/studies/{study_id}").json()
    (recipe,) = study["result"]["recipes"]
    assert recipe["failure"] is None and recipe["loss"] is not None
    assert trained == {("bf16-mixed", "adamw"), ("bf16-true", "adamw-bf16")}
    assert study["spec"]["workload"]["optimizer"]["kind"] == "adamw"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"consider": ["muon"], "space": {"backends": ["zero"]}},
            "consider ('muon'): strategy.kind ('zero') cannot train",
        ),
        (
            {"consider": ["muon"], "workload": WORKLOAD | {"adapter": {"kind": "lora"}}},
            "consider ('muon'): optimizer.kind ('muon') updates whole matrices",
        ),
    ],
)
def test_a_recipe_that_no_backend_of_the_study_can_train_is_rejected(quick_client, changes, says):
    SimulatedWorker(quick_client, adapters=("lora",), **NEW).register()
    answer = quick_client.post("/v1/studies", json=CONSIDERING | changes)
    assert answer.status_code == 422 and says in answer.text


def test_recipe_runs_of_an_earlier_comparison_count_no_longer(quick_client):
    worker = SimulatedWorker(quick_client, behave=lambda _, task: of_recipe(task), **NEW).register()
    study_id = create(quick_client, consider=["bf16-true"])
    worker.work()
    quick_client.post(f"/v1/studies/{study_id}:extend", json={"add_trials": 1}).raise_for_status()
    study = Study.model_validate(quick_client.get(f"/v1/studies/{study_id}").json())
    trials = TypeAdapter(list[Trial]).validate_python(
        quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    )
    assert any(run.purpose == "recipe" for trial in trials for run in trial.runs)
    with quick_client.app.state.context.db.read() as session:
        (on_pages,) = best.runs_by_study(session, [study]).values()
    assert time_left.count_runs(study, trials).recipe_runs == on_pages.recipe_runs == 0


def test_the_page_and_the_estimate_name_the_recipes(quick_client):
    worker = SimulatedWorker(quick_client, behave=lambda _, task: of_recipe(task), **NEW).register()
    study_id = create(quick_client, consider=["bf16-true"])
    worker.work()
    page = quick_client.get(f"/studies/{study_id}").text
    assert "Recipes beside the answer" in page and "trains worse by more than 0.02" in page
    cost = quick_client.post(
        "/v1/predictions/study-cost", json=CONSIDERING | {"consider": ["bf16-true", "fp32"]}
    ).json()
    plain = quick_client.post("/v1/predictions/study-cost", json=CONSIDERING).json()
    assert cost["recipe_runs"] == {"low": 9, "high": 30} and plain["recipe_runs"] == {"low": 0, "high": 0}
    assert cost["minutes"]["low"] > plain["minutes"]["low"]
    assert cost["stops"][-1].endswith("after 3 to 10 runs of each recipe") and "recipe" not in plain["stops"][-1]
