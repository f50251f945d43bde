"""Mistakes in requests, in words that name no class of ours."""

import pytest
from pydantic import ValidationError

from shardtune.api_schemas.known_fields import fields_at, rephrase_error
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.trials.plans import PlanRequest
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.service.http.validation_errors import drop_union_noise, field_error

SOUND = {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 16}}


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"baseline": "ds.json"}, "baseline", "paths (.json, .yaml) are read by the command line only"),
        ({"model": "my-llama.json"}, "model", "or the content of a config.json"),
        ({"workload": "x"}, "workload", "must be an object with sequence_length and global_batch"),
        ({"space": []}, "space", "must be an object; send one"),
        ({"space": {"backends": ["fsdp"]}}, "space.backends.0", "fsdp2"),
        ({"space": {"backends": []}}, "space.backends", "at least 1 item"),
        (
            {"space": {"knobs": {"micro_batch": None}}},
            "space.knobs.micro_batch",
            "true or false, a number, text, a list",
        ),
        (
            {"space": {"knobs": {"micro_batch": [1, None]}}},
            "space.knobs.micro_batch.1",
            "true or false, a number or text",
        ),
        (
            {"space": {"knobs": {"micro_batch": {"min": 8, "max": 2}}}},
            "space.knobs.micro_batch.min",
            "must not exceed max",
        ),
        ({"baseline": []}, "baseline", "must be an object with strategy"),
        ({"cluster": "remote"}, "cluster", "8xh100"),
        ({"cluster": 3}, "cluster", "must be an object or text; correct it"),
        ({"sampler": "best"}, "sampler", "must be 'guided', 'tpe', 'gp' or 'random'"),
    ],
)
def test_a_mistake_is_said_once_with_field_and_remedy(change, field, says):
    with pytest.raises(ValidationError) as rejected:
        StudyRequest.model_validate(SOUND | change)
    (error,) = map(field_error, drop_union_noise(rejected.value.errors()))
    assert error.field == field and says in error.message and "dictionary" not in error.message


def test_a_rule_that_names_a_part_of_its_own_field_names_it_once():
    request = {"model": "llama-tiny", "tokens": 1e9, "gpus": ["h100"], "counts": [8], "prices": {"h100": -1}}
    with pytest.raises(ValidationError) as rejected:
        PlanRequest.model_validate(request)
    (error,) = map(field_error, rejected.value.errors())
    assert (error.field, error.value) == ("prices.h100", "-1.0")


@pytest.mark.parametrize(
    ("change", "field", "remedy"),
    [
        ({"clustr": "local"}, "clustr", "did you mean cluster?"),
        ({"budget": {"max_trial": 3}}, "budget.max_trial", "did you mean max_trials?"),
        (
            {"space": {"knobs": {"micro_batch": {"atleast": 2}}}},
            "space.knobs.micro_batch.atleast",
            "use one of min, max",
        ),
        (
            {"workload": SOUND["workload"] | {"samples": 7}},
            "workload.samples",
            "use one of sequence_length, global_batch",
        ),
        ({"model": {"name": "x", "confg": {}}}, "model.confg", "did you mean config?"),
        ({"space": {"context_parallel": 2}}, "space.context_parallel", "did you mean knobs.context_parallel?"),
        ({"context_parallel": 2}, "context_parallel", "did you mean space.knobs.context_parallel?"),
        (
            {"workload": SOUND["workload"] | {"context_parallel": 2}},
            "workload.context_parallel",
            "did you mean space.knobs.context_parallel? It is a setting of trials, not of the workload",
        ),
    ],
)
def test_a_field_that_is_none_is_told_which_its_object_has(change, field, remedy):
    with pytest.raises(ValidationError) as rejected:
        StudyRequest.model_validate(SOUND | change)
    items = [error for error in rejected.value.errors() if error["type"] == "extra_forbidden"]
    (error,) = [field_error(item, fields_at(StudyRequest, item["loc"][:-1])) for item in items]
    assert error.field == field and remedy in error.message


def test_fields_are_found_behind_tags_lists_and_optional_objects():
    assert "dp_shard" in fields_at(TrialConfig, ("strategy", "fsdp2"))
    assert "dp_shard" not in fields_at(TrialConfig, ("strategy", "ddp"))
    assert "trial_id" not in fields_at(TrialConfig, ("strategy", "fsdp2", "dp_shard"))
    assert fields_at(PredictionRequest, ("configs", 0, "strategy", "ddp"))
    assert fields_at(None, ("clustr",)) == []


def test_a_value_that_is_wrong_as_a_whole_has_no_field_within():
    with pytest.raises(ValidationError) as rejected:
        ModelSpec.model_validate("tiny")
    (item,) = drop_union_noise(rejected.value.errors())
    assert item["loc"] == () and "is not a preset" in item["msg"]


def test_a_huge_integer_is_rejected_in_words_about_its_value() -> None:
    """`unable to parse input string` was said of a number."""
    with pytest.raises(ValidationError) as error:
        StudyRequest.model_validate({"budget": {"max_pairs": 1e30}})
    messages = [rephrase_error(found["msg"]) for found in error.value.errors() if "max_pairs" in found["loc"]]
    assert messages == ["must be a smaller whole number"]
