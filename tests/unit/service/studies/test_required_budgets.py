"""Budgets of activations that a study requires, before a worker has summarised the study's model."""

from typing import Any

import pytest

from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.service.http.errors import Invalid
from shardtune.service.studies import validation
from shardtune.tuner.prediction import catalogue


def check(model: dict[str, Any]) -> None:
    request = StudyRequest.model_validate(
        {
            "model": model,
            "workload": {"sequence_length": 64, "global_batch": 64, "precision": "bf16-mixed"},
            "space": {"knobs": {"activation_memory_budget": 0.5}},
            "cluster": "8xh100",
        }
    )
    validation.check_without_worker(request, catalogue.parse_cluster("8xh100"))


@pytest.mark.parametrize("kind", ["gemma2", "phi3", "olmo2"])
def test_a_family_without_closed_form_is_not_taken_for_a_mixture_of_experts(kind: str) -> None:
    check({"name": kind, "config": {"model_type": kind}})


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"name": "m", "config": {"model_type": "olmoe", "num_experts": 8}}, "its blocks route tokens to experts"),
        ({"script": "train.py"}, "your own code may draw random numbers"),
        ({"entry_point": "own"}, "your own code may draw random numbers"),
    ],
    ids=["experts", "script", "entry point"],
)
def test_a_model_that_can_have_no_budget_is_rejected_before_a_worker_is_taken(model: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=rf"leaves nothing to search: .*{says}"):
        check(model)
