"""Considered recipes: run beside the answer, never the answer, and as durable as its runs."""

import random

import pytest
from pydantic import TypeAdapter

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TASK_KINDS, TrialTask
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.lifecycle import expiry
from shardtune.service.pages.views import best
from shardtune.service.wording.progress import time_left
from tests.support.service.simulated_worker import (
    SPEC,
    SimulatedWorker,
    failure,
    measurement,
    on_quiet_machine,
    speed_of,
)

NEW = {"task_kinds": TASK_KINDS}
STEPS = 40
LOSSES = [5.0 - 0.01 * step for step in range(STEPS)]
WORKLOAD = SPEC["workload"] | {"precision": "bf16-mixed"}
CONSIDERING = SPEC | {
    "workload": WORKLOAD,
    "consider_steps": STEPS,
    "space": {"backends": ["ddp", "zero", "fsdp2"]},
    # Each backend's default, and one more.
    "budget": {"max_trials": 4},
}
FACTOR = {"bf16-mixed": 1.0, "bf16-true": 1.3, "fp32": 0.5}
LAG = {"bf16-mixed": 0.0, "bf16-true": 0.3, "fp32": -0.001}


def recipe_of(task):
    return task.workload.optimizer.kind if task.workload.optimizer.kind == "muon" else task.workload.precision.name


def of_recipe(task, **changes):
    """A measurement of a recipe's speed, memory and losses."""
    name = recipe_of(task)
    speed = speed_of(task.config) * FACTOR.get(name, 0.9)
    losses = [loss + LAG.get(name, 0.0) for loss in LOSSES] if task.plan.loss_steps else [5.0] * 10
    return on_quiet_machine(measurement(speed)).model_copy(update={"losses": tuple(losses), **changes})


def create(client, **changes):
    answer = client.post("/v1/studies", json=CONSIDERING | changes)
    assert answer.status_code == 201, answer.text
    return answer.json()["study_id"]


def is_recipe_run(client, lease):
    runs = client.get(f"/v1/studies/{lease.study_id}/trials").json()["trials"][lease.trial_number]["runs"]
    return next(run for run in runs if run["run_id"] == lease.run_id)["purpose"] == "recipe"


def first_recipe_run(client, worker):
    """Everything before it; its lease."""
    while (lease := worker.lease()) is not None:
        if isinstance(lease.task, TrialTask) and is_recipe_run(client, lease):
            return lease
        worker.do(lease)
    raise AssertionError("the study ended without a recipe run")


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


def test_a_worker_that_reports_too_few_losses_costs_the_comparison_alone(quick_client):
    def behave(_lease, task):
        return of_recipe(task, losses=(5.0,) * 5) if task.plan.loss_steps else of_recipe(task)

    worker = SimulatedWorker(quick_client, behave=behave, **NEW).register()
    study_id = create(quick_client, consider=["bf16-true"])
    worker.work()
    (recipe,) = quick_client.get(f"/v1/studies/{study_id}/best").json()["recipes"]
    assert recipe["loss"] is None and recipe["speed"]["value"] == pytest.approx(1.3)
    assert recipe["notes"] == [f"losses of 5 steps were reported, of {STEPS} asked for"]


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


def test_workers_of_an_older_release_get_no_recipe_run_and_the_answer_says_so(quick_client):
    kinds = tuple(kind for kind in TASK_KINDS if kind != "recipe")
    worker = SimulatedWorker(quick_client, behave=lambda _, task: of_recipe(task), task_kinds=kinds).register()
    study_id = create(quick_client, consider=["bf16-true"])
    worker.work()
    study = quick_client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete" and study["result"]["recipes"] == []
    assert any("no live worker knows such runs" in note for note in study["result"]["notes"])


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
