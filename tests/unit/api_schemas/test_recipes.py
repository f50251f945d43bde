"""Recipes that a study may consider, and how each changes the workload."""

from typing import Any

import pytest
from pydantic import ValidationError

from shardtune.api_schemas.studies.recipes import RECIPES, changed
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.training.optimizers import AdamW, AdamWBf16, Muon
from shardtune.api_schemas.training.workload import PRECISIONS, Workload

WORKLOAD = Workload(sequence_length=64, global_batch=8, precision=PRECISIONS["fp32"], optimizer=AdamW(lr=7e-4))
REQUEST: dict[str, Any] = {
    "model": "llama-tiny",
    "workload": {"sequence_length": 64, "global_batch": 8, "precision": "fp32"},
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"consider": ["fp4"]}, r"consider \('fp4'\) is no recipe; use some of bf16-mixed, .*muon"),
        ({"consider": ["muon", "muon"]}, r"consider \('muon'\) names a recipe twice"),
        ({"consider": ["fp32"]}, r"consider \('fp32'\) is what the workload states already; leave it out"),
        ({"consider": ["adamw"]}, r"consider \('adamw'\) is what the workload states"),
        ({"consider": ["bf16-true", "bf16-mixed", "bf16-autocast", "muon", "fp32"]}, "at most 4"),
        ({"consider": "muon"}, "tuple"),
        ({"consider": ["muon"], "consider_steps": 19}, "greater than or equal to 20"),
        ({"consider": ["muon"], "most_loss_difference": 0}, "greater than 0"),
        ({"consider": ["muon"], "model": {"script": "own", "config": {}}}, "applies dtypes and optimizer itself"),
    ],
)
def test_what_cannot_be_considered_names_field_value_and_remedy(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        StudyRequest.model_validate(REQUEST | change)


def test_a_recipe_changes_one_thing_and_keeps_the_learning_rate() -> None:
    true, muon = changed(WORKLOAD, "bf16-true"), changed(WORKLOAD, "muon")
    assert true == WORKLOAD.model_copy(update={"precision": PRECISIONS["bf16-true"]})
    assert (
        muon.optimizer == Muon(lr=7e-4, weight_decay=0.1, adamw=AdamW(lr=7e-4)) and muon.precision == WORKLOAD.precision
    )
    assert changed(muon, "adamw") == WORKLOAD
    assert all(changed(WORKLOAD, name) != WORKLOAD for name in RECIPES if name not in ("fp32", "adamw"))


def test_stochastic_rounding_comes_with_bfloat16_weights_and_goes_with_them() -> None:
    rounded = changed(WORKLOAD, "adamw-bf16")
    assert rounded.optimizer == AdamWBf16(lr=7e-4) and rounded.precision == PRECISIONS["bf16-true"]
    assert changed(rounded, "fp32") == WORKLOAD
    assert changed(rounded, "adamw") == changed(WORKLOAD, "bf16-true")
    assert changed(changed(WORKLOAD, "muon"), "adamw-bf16") == rounded


def test_a_recipe_that_a_device_chose_is_not_compared_with_itself() -> None:
    request = StudyRequest.model_validate(
        REQUEST | {"workload": {"sequence_length": 64, "global_batch": 8}, "consider": ["bf16-mixed", "fp32"]}
    )
    assert request.with_precision(PRECISIONS["bf16-mixed"]).consider == ("fp32",)
