"""A cancelled study with a complete, an infeasible and a pruned trial, for tests of trackers."""

from datetime import UTC, datetime, timedelta

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.trial import Attempt, AttemptEnd, Run, RunPurpose, Trial, TrialOrigin, TrialState
from tests.support.service.simulated_worker import CLUSTER

BEGIN = datetime(2026, 11, 1, 12, tzinfo=UTC)
SPEC = StudySpec.model_validate(
    {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 8, "precision": "fp32"}}
)
OUT_OF_MEMORY = Failure(kind=FailureKind.OOM, message="out of memory: tried to allocate 2 GiB")


def trial(number: int, state: TrialState, config: dict, **fields) -> Trial:
    """A trial whose search run took a minute."""
    config = TrialConfig.model_validate(config)
    begin = BEGIN + timedelta(minutes=number)
    attempt = Attempt(
        attempt=1, worker="w", started_at=begin, finished_at=begin + timedelta(seconds=60), end=AttemptEnd.COMPLETE, gpu_seconds=120
    )  # fmt: skip
    run = Run(run_id=f"r{number}", purpose=RunPurpose.SEARCH, state=state, attempts=(attempt,))
    values = {"origin": TrialOrigin.SAMPLER, "description": config.describe(), "runs": (run,)}
    return Trial(number=number, state=state, config=config, **values | fields)


TRIALS = (
    trial(0, TrialState.COMPLETE, {"strategy": {"kind": "ddp"}}, tokens_per_s_per_gpu=1000.0, peak_allocated_gib=1.5),
    trial(1, TrialState.INFEASIBLE, {"strategy": {"kind": "fsdp2", "dp_shard": 2}}, failure=OUT_OF_MEMORY),
    trial(
        2, TrialState.PRUNED, {"strategy": {"kind": "zero", "stage": 2}, "micro_batch": 4}, tokens_per_s_per_gpu=400.0
    ),
)


def study(**fields) -> Study:
    """The study of these trials."""
    values = {
        "study_id": "study-1",
        "state": StudyState.CANCELLED,
        "phase": StudyPhase.SEARCH,
        "spec": SPEC,
        "cluster": CLUSTER,
        "trials": {"complete": 1, "infeasible": 1, "pruned": 1},
        "rejected": 0,
        "gpu_seconds": 360.0,
        "created_at": BEGIN,
    }
    return Study.model_validate(values | fields)
