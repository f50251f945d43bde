"""Studies with a target, predicted, and trials that were so many times as fast as predicted."""

import math
from collections.abc import Sequence

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.api_schemas.studies.targets import StudyProjection
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.tuner.prediction import catalogue, prediction_request
from shardtune.tuner.projection import rungs, target_answer
from shardtune.tuner.projection.rung_test import Rung
from shardtune.tuner.projection.target_sizes import TargetSizes

HERE = catalogue.parse_cluster("2x8xh100")
SHARDED = TrialConfig(strategy=Fsdp2Config(dp_shard=16), micro_batch=2, activation_checkpointing="full")
HYBRID = TrialConfig(strategy=Fsdp2Config(dp_shard=8, dp_replicate=2), micro_batch=2, activation_checkpointing="full")
ZERO3 = TrialConfig(strategy=ZeroConfig(stage=3), micro_batch=2, activation_checkpointing="full")


def sizes_of(
    target: str = "64x8", model: str = "llama-2-7b", cluster: str = "2x8xh100", global_batch: int = 2048
) -> TargetSizes:
    here = catalogue.parse_cluster(cluster)
    request = StudyRequest.model_validate(
        {
            "model": model,
            "workload": {"sequence_length": 4096, "global_batch": global_batch},
            "cluster": cluster,
            "target": target,
        }
    )
    spec = rungs.for_rung(request, here).with_precision(PRECISIONS["bf16-mixed"])
    shape = prediction_request.resolve(PredictionRequest(model=model, cluster=here)).shape
    return TargetSizes.of_study(spec, shape, here, None)


def measured(sizes: TargetSizes, configs: Sequence[TrialConfig], *factors: float) -> list[Contender]:
    """Trials that were so many times as fast as predicted."""
    predicted = sizes.predict(configs, sizes.cluster)
    return [
        Contender(
            trial_number=number,
            config=config,
            description=config.describe(),
            tokens_per_s_per_gpu=size.predicted.tokens_per_s_per_gpu * factor,
            peak_allocated_gib=size.predicted.memory_gib,
            peak_reserved_gib=None,
            runs=1,
        )
        for number, (config, size, factor) in enumerate(zip(configs, predicted, factors, strict=True))
    ]


def projection_of(
    sizes: TargetSizes,
    trials: Sequence[Contender],
    not_fitting: Sequence[TrialConfig],
    smaller: Sequence[Rung] = (),
) -> StudyProjection:
    return target_answer.answer(target_answer.project_trials(sizes, trials, not_fitting, smaller))


def half_width(band: Band) -> float:
    return math.log(band.high / band.expected)
