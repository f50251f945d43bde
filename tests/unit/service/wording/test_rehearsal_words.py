"""Sentences about the rehearsals of a projected answer."""

import pytest

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.studies.target_rehearsals import TargetRehearsal
from shardtune.api_schemas.studies.targets import ProjectedConfig, StudyProjection
from shardtune.service.wording.targets import rehearsal_words
from shardtune.tuner.prediction import catalogue


def outcome(**changes: object) -> TargetRehearsal:
    values = {
        "trial_number": 3, "config": TrialConfig(strategy=Fsdp2Config(dp_shard=512)), "description": "FSDP2",
        "ranks": 512, "outcome": "built", "allocated_gib": 16.8, "predicted_gib": 16.5, "available_gib": 76.0,
    }  # fmt: skip
    return TargetRehearsal.model_validate({**values, **changes})


def rejected(code: str, **changes: object) -> TargetRehearsal:
    problem = {"code": code, "message": "dp_shard (512) is wrong; use 256"}
    return outcome(outcome="rejected", problem=problem, **changes)


@pytest.mark.parametrize(
    ("rehearsal", "sentence"),
    [
        (outcome(), "built and stepped in a rehearsal; peak 16.8 GiB of tensors (prediction 16.5 GiB)"),
        (outcome(predicted_gib=None), "built and stepped in a rehearsal; peak 16.8 GiB of tensors"),
        (
            outcome(without_compile=True, available_gib=None),
            "built and stepped in a rehearsal; peak 16.8 GiB of tensors (prediction 16.5 GiB), rehearsed without "
            "compilation and not compared with the GPU",
        ),
        (
            rejected("over_memory", allocated_gib=90.0),
            "rejected by its rehearsal, which needs more than the 76.0 GiB that a GPU may use; peak 90.0 GiB of tensors "
            "(prediction 16.5 GiB)",
        ),
        (rejected("misfit", allocated_gib=None), "cannot be built (misfit): dp_shard (512) is wrong; use 256"),
        (
            outcome(outcome="not_rehearsed", problem={"code": "time", "message": "took more than 300 s"}),
            "was not rehearsed (time): took more than 300 s",
        ),
    ],
)
def test_each_outcome_is_said_with_its_figures_or_its_reason(rehearsal: TargetRehearsal, sentence: str) -> None:
    assert rehearsal_words.sentence(rehearsal) == f"FSDP2, at 512 ranks: {sentence}"


def test_what_is_unknown_for_the_same_reason_is_said_once() -> None:
    problem = {"code": "unsupported", "message": "backend (ddp) reads results"}
    unknown = [
        outcome(description=name, outcome="not_rehearsed", problem=problem, allocated_gib=None) for name in ("A", "B")
    ]
    shown = projection(rehearsals=(*unknown, outcome()))
    first, second = rehearsal_words.sentences(shown)
    assert first == "A and B, at 512 ranks: were not rehearsed (unsupported): backend (ddp) reads results"
    assert second.startswith("FSDP2, at 512 ranks: built")


def test_an_answer_after_rejected_ones_is_not_called_rehearsed() -> None:
    other = TrialConfig(strategy=Fsdp2Config(dp_shard=8, dp_replicate=64))
    shown = projection(rehearsals=(rejected("misfit", config=other, allocated_gib=None),))
    assert shown.rehearsal_of_answer is None
    assert "FSDP2 was not rehearsed, because 1 faster" in rehearsal_words.sentences(shown)[-1]


def projection(rehearsals: tuple[TargetRehearsal, ...]) -> StudyProjection:
    """Projection whose best configuration is that of `outcome`."""
    speed = Band(expected=1000, low=900, high=1100)
    best = ProjectedConfig(
        trial_number=3, config=outcome().config, description="FSDP2", scaled=(), measured_tokens_per_s_per_gpu=1000,
        tokens_per_s_per_gpu=speed, memory_gib=speed, may_not_fit=False, chance_of_best=1, rank_measured=1, unseen=(),
    )  # fmt: skip
    return StudyProjection(
        cluster=catalogue.parse_cluster("64x8xh100"), global_batch=512, measured_gpus=16, doublings=5, best=best,
        order_changes=False, projected=1, only_at_target=0, too_large=0, rehearsals=rehearsals,
    )  # fmt: skip
