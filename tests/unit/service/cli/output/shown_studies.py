"""Study, trials and results whose output the tests beside this module read."""

from datetime import UTC, datetime
from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Contender, FinalComparison, Speedup, StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.trial import Rejection, Trial, TrialState

CPU = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
DDP, ZERO = TrialConfig(strategy=DdpConfig()), TrialConfig(strategy=ZeroConfig(stage=2), micro_batch=4)


def contender(number: int, config: TrialConfig, rate: float) -> Contender:
    return Contender(
        trial_number=number, config=config, description=config.describe(), tokens_per_s_per_gpu=rate,
        peak_allocated_gib=0.41, peak_reserved_gib=None, runs=5,
    )  # fmt: skip


def study(**changes: Any) -> Study:
    spec = StudySpec(
        model=preset("llama-tiny"), workload=Workload(sequence_length=64, global_batch=16), budget=Budget(max_trials=8)
    )
    values = {
        "study_id": "study-1", "state": StudyState.RUNNING, "phase": StudyPhase.SEARCH, "spec": spec, "cluster": CPU,
        "trials": {"complete": 7, "infeasible": 1, "failed": 0}, "rejected": 3, "gpu_seconds": 40,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    return Study.model_validate(values | changes)


def trial(number: int, state: TrialState, **changes: Any) -> Trial:
    config = ZERO if number else DDP
    return Trial(
        number=number, state=state, origin="default", config=config, description=config.describe(), **changes
    )  # fmt: skip


def _reason(config: TrialConfig, needed: float) -> str:
    # As the memory gate words it.
    return f"{config.describe()}: holds at least {needed} GiB"


def rejected(config: TrialConfig, needed: float) -> Rejection:
    return Rejection(config=config, needed_gib=needed, available_gib=4, reason=_reason(config, needed))


CONFIRMED = StudyResult(
    best=contender(1, ZERO, 1234.5).model_copy(update={"spread": (1200.0, 1260.0)}), baseline=contender(0, DDP, 942.0),
    speedup=Speedup(value=1.31, ci95=(1.27, 1.35), pairs=8), verdict=Verdict.CONFIRMED,
    search_runs=9, disturbed_search_runs=2, final_comparison=FinalComparison(
        number=1, candidates=(1, 2, 3, 4), pairs=8, disturbed_pairs=1, runs=22, gpu_seconds=190
    ),
)  # fmt: skip
UNBEATEN = StudyResult(
    best=contender(0, DDP, 942.0), baseline=contender(0, DDP, 942.0), candidate=contender(1, ZERO, 950.0),
    speedup=Speedup(value=1.01, ci95=(0.97, 1.05), pairs=5), verdict=Verdict.NOT_FASTER,
)  # fmt: skip
