"""A known answer waits for no optional run: an obstacle of the sustained run completes the study."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.recipes import RecipeRun
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.service.planning import study_plan
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import (
    Complete,
    NewRecipeRun,
    NewSustainedRun,
    StartFinalComparison,
    Step,
    Wait,
)
from shardtune.tuner.verdict.recipes.comparison import RecipeObservation
from shardtune.tuner.verdict.winner.sustained_run import OBSTACLE_TEXTS, SustainedObstacle, SustainedRun
from tests.support.values.synthetic_studies import CPU, study_of
from tests.support.values.tuner_inputs import TINY, complete

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def plan(snapshot: StudySnapshot) -> Step:
    return study_plan.plan_next_step(snapshot, PlannerCache(), NOON, may_ask=False)


def answered_study() -> StudySnapshot:
    """A study of one trial, which needs no pairs, with a recipe to compare after the answer."""
    study = study_of()
    budget = Budget(max_trials=1, resume_check=False, sustained_run_s=60.0)
    update = {
        "budget": budget,
        "consider": ("bf16-true",),
        "space": study.spec.space.model_copy(update={"backends": ("ddp",)}),
    }
    snapshot = StudySnapshot(
        study_id=study.study_id, version=1, state=StudyState.RUNNING, phase=StudyPhase.SEARCH,
        spec=study.spec.model_copy(update=update), cluster=CPU, baseline=None, model_summary=TINY, notes=(),
        gpu_seconds=0.0, started_at=NOON, final_comparison=None,
        history=(complete(0, TrialConfig(strategy=DdpConfig()), 100.0),), rejected=(), validation_runs=(),
        final_comparison_cost=(0, 0.0), has_waiting_run=False, has_open_run=False,
    )  # fmt: skip
    step = plan(snapshot)
    assert isinstance(step, StartFinalComparison)
    return replace(snapshot, phase=StudyPhase.FINAL_COMPARISON, final_comparison=step.final_comparison)


def test_without_an_obstacle_the_sustained_run_comes_before_the_recipes() -> None:
    assert isinstance(plan(answered_study()), NewSustainedRun)


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("obstacle", SustainedObstacle)
def test_an_obstacle_completes_the_study_without_further_runs(obstacle: SustainedObstacle, is_waiting: bool) -> None:
    snapshot = replace(
        answered_study(), sustained_obstacle=obstacle, has_waiting_run=is_waiting, has_open_run=is_waiting
    )
    if is_waiting:
        snapshot = replace(snapshot, sustained_runs=(SustainedRun(0, TrialState.WAITING),))
    step = plan(snapshot)
    if obstacle is SustainedObstacle.NO_WORKER:
        assert isinstance(step, NewRecipeRun), "a worker of an older release may know the recipes"
        return
    assert isinstance(step, Complete) and step.result.sustained is not None
    reason = step.result.sustained.reason
    assert step.result.sustained.outcome == "left_out" and reason
    assert OBSTACLE_TEXTS[obstacle] in reason
    assert any(OBSTACLE_TEXTS[obstacle] in note and "bf16-true" in note for note in step.result.notes)
    assert not any("sustained" in note for note in step.result.notes), "of the sustained run another field speaks"


@pytest.mark.parametrize("obstacle", [obstacle for obstacle in SustainedObstacle if obstacle != "no_worker"])
def test_an_obstacle_completes_a_study_whose_recipe_run_waits(obstacle: SustainedObstacle) -> None:
    recipe = RecipeObservation(0, RecipeRun(name=None, config=TrialConfig(strategy=DdpConfig())), 1, TrialState.WAITING)
    ended = SustainedRun(0, TrialState.FAILED)
    snapshot = replace(
        answered_study(), sustained_runs=(ended,), recipe_runs=(recipe,), has_waiting_run=True, has_open_run=True
    )
    assert isinstance(plan(snapshot), Wait)
    step = plan(replace(snapshot, sustained_obstacle=obstacle))
    assert isinstance(step, Complete) and any(OBSTACLE_TEXTS[obstacle] in note for note in step.result.notes)
    assert step.result.sustained is not None and step.result.sustained.outcome == "failed"


def test_a_setting_that_leaves_the_sustained_run_out_stays_the_reason_when_a_recipe_meets_an_obstacle() -> None:
    snapshot = answered_study()
    budget = snapshot.spec.budget.model_copy(update={"max_gpu_seconds": 1.0})
    snapshot = replace(snapshot, spec=snapshot.spec.model_copy(update={"budget": budget}))
    step = plan(replace(snapshot, sustained_obstacle=SustainedObstacle.QUOTA_USED_UP))
    assert isinstance(step, Complete) and step.result.sustained is not None
    assert "max_gpu_seconds (1)" in (step.result.sustained.reason or "")
