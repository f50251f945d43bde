"""Studies of a Llama-3.1-8B on one node of eight H100 with a target of eight nodes, for plans."""

from typing import Any

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_result import Contender, StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.tuner.projection import rungs
from tests.support.values.target_studies import measured, projection_of, sizes_of
from tests.support.values.tracked_study import study

MODEL, SEQUENCE, BATCH, TARGET_BATCH = "llama-3.1-8b", 4096, 64, 512
BEST = TrialConfig(strategy=Fsdp2Config(dp_shard=8), micro_batch=2, activation_checkpointing="full")
BASELINE = TrialConfig(strategy=Fsdp2Config(dp_shard=8), micro_batch=1, activation_checkpointing="full")
SIZES = sizes_of("8x8", MODEL, "1x8xh100", TARGET_BATCH)


def contenders(
    factors: tuple[float, float] = (0.9, 0.8), configs: tuple[TrialConfig, ...] = (BEST, BASELINE)
) -> list[Contender]:
    """The best and the baseline, so many times as fast as predicted, with seven runs within 2 %."""
    return [
        row.model_copy(update={"runs": 7, "spread": (row.tokens_per_s_per_gpu * 0.99, row.tokens_per_s_per_gpu * 1.01)})
        for row in measured(SIZES, configs, *factors)
    ]


def planned_study(verdict: Verdict = Verdict.CONFIRMED, workload: dict[str, Any] | None = None, **result: Any) -> Study:
    """A complete study with its projection, whose result has other values where `result` states them."""
    best, baseline = contenders()
    values = {
        "best": best,
        "baseline": baseline,
        "speedup": None,
        "verdict": verdict,
        "projection": projection_of(SIZES, [best, baseline], []),
    }
    return study(
        state=StudyState.COMPLETE,
        spec=_spec(workload or {}),
        cluster=SIZES.cluster,
        result=StudyResult.model_validate(values | result),
    )


def _spec(workload: dict[str, Any]) -> Any:
    values = {"sequence_length": SEQUENCE, "global_batch": TARGET_BATCH} | workload
    request = StudyRequest.model_validate({"model": MODEL, "workload": values, "cluster": "1x8xh100", "target": "8x8"})
    return rungs.for_rung(request, SIZES.cluster).with_precision(PRECISIONS["bf16-mixed"])
