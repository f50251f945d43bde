"""Sentences about rehearsals."""

import pytest

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.trials.rehearsals import Rehearsal, RehearsalProblem
from shardtune.service.cli.rehearse import words
from shardtune.tuner.prediction import catalogue


def rehearsed(**changes: object) -> Rehearsal:
    values = {
        "cluster": catalogue.parse_cluster("64x8xh100"), "ranks": 512, "global_batch": 512, "description": "FSDP2",
        "config": TrialConfig(strategy=Fsdp2Config(dp_shard=512)), "builds": True, "allocated_gib": 61.3,
    }  # fmt: skip
    return Rehearsal.model_validate({**values, **changes})


@pytest.mark.parametrize(
    ("above", "end"),
    [
        (0.03, "61.3 GiB allocated, 3 % above the prediction"),
        (-0.04, "61.3 GiB allocated, 4 % below the prediction"),
        (0.001, "61.3 GiB allocated, as predicted"),
        (None, "61.3 GiB allocated, not predicted"),
    ],
)
def test_memory_stands_beside_the_prediction(above: float | None, end: str) -> None:
    sentence = words.sentence(rehearsed(above_prediction=above))
    assert sentence == f"rehearsed at 512 ranks: builds; {end}"


@pytest.mark.parametrize(("code", "verb"), [("misfit", "cannot be built"), ("time", "was not rehearsed")])
def test_a_refusal_says_its_code(code: str, verb: str) -> None:
    problem = RehearsalProblem.model_validate({"code": code, "message": "dp_shard (48) is wrong; use 64"})
    sentence = words.sentence(rehearsed(builds=False, problem=problem))
    assert sentence == f"rehearsed at 512 ranks: {verb} ({code}): dp_shard (48) is wrong; use 64"


def test_a_peak_over_the_memory_is_refused_beside_its_figure() -> None:
    problem = RehearsalProblem(code="over_memory", message="cluster.memory_gib (60) is less; split the model")
    sentence = words.sentence(rehearsed(problem=problem, above_prediction=0.03))
    assert sentence == (
        "rehearsed at 512 ranks: builds and does not fit (over_memory): 61.3 GiB allocated, 3 % above the prediction; "
        "cluster.memory_gib (60) is less; split the model"
    )
