"""An undecided study, and options of `tune` with code that was allowed."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Contender, StudyResult, Verdict
from shardtune.api_schemas.studies.verdicts import OpenVerdict
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.service.cli.tune.options import TuneOptions

ALLOWED = ("--allow-script", "mine=train.py --data 'a b'", "--allow-model", "lora")
AGAIN = """--allow-script 'mine=train.py --data '"'"'a b'"'"'' --allow-model lora"""


def options(**changes: Any) -> TuneOptions:
    arguments: dict[str, Any] = {
        "study": Path("study.json"), "ranks": None, "max_trials": None, "memory_gib": None, "resume": False,
        "state_dir": Path(".shardtune"), "out": Path("best"), "as_json": False,
    }  # fmt: skip
    return TuneOptions(**(arguments | changes))


def undecided(more_pairs: int | None, max_pairs: int = 24) -> tuple[Study, StudyResult]:
    spec = StudySpec(
        model=preset("llama-tiny"),
        workload=Workload(sequence_length=64, global_batch=16),
        budget=Budget(max_pairs=max_pairs),
    )
    study = Study(
        study_id="study-1", state="complete", phase="done", spec=spec, trials={}, rejected=0, gpu_seconds=1,
        cluster=Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    config = TrialConfig(strategy=DdpConfig())
    best = Contender(
        trial_number=0, config=config, description="x", tokens_per_s_per_gpu=1, peak_allocated_gib=None,
        peak_reserved_gib=None, runs=1,
    )  # fmt: skip
    open_verdict = OpenVerdict(pairs=7, won_pairs=5, more_pairs=more_pairs)
    result = StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.UNDECIDED, undecided=open_verdict)
    return study, result
