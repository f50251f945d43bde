"""Store made-up studies in the form in which the service stores real ones."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import insert, select

from benchmarks.pages import synthetic_diagnosis
from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint, Inventory
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Contender, Speedup, StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.training.model_presets import preset_names
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.measurements import Measurement, Memory, StepRecord
from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.queries import workers
from shardtune.db.session import Database
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import AttemptRow, RunRow, TrialRow

START = datetime(2026, 1, 1, tzinfo=UTC)
CLUSTER = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=16)
FINGERPRINT = Fingerprint(
    device="cpu", gpu="cpu", gpu_count=0, gpu_memory_gib=None, driver=None, cuda=None, nccl=None, torch="2.13.0",
    deepspeed="0.19.8", transformers="5.23.0", python="3.11", kernel="6.1", cpu="made up", cpu_count=2, host_memory_gib=16,
)  # fmt: skip


def configuration(number: int, rng: random.Random) -> TrialConfig:
    """A different one for each number."""
    micro = 2 ** (number % 5)
    strategies: list[Any] = [
        DdpConfig(bucket_cap_mb=number + 1),
        ZeroConfig(stage=rng.choice((1, 2, 3)), reduce_bucket_size=10_000 * (number + 1)),
        Fsdp2Config(dp_shard=2, forward_prefetch=number % 8, blocks_per_unit=1 + number // 8),
    ]
    return TrialConfig(strategy=strategies[number % 3], micro_batch=micro, activation_checkpointing="full")


def measurement(rng: random.Random) -> Measurement:
    """A measurement of the usual length."""
    speed = rng.uniform(500, 3000)
    windows = tuple(1024 / speed * rng.uniform(0.97, 1.03) for _ in range(8))
    return Measurement(
        tokens_per_s_per_gpu=speed,
        step_time_s=1024 / speed,
        step_time_half_width_s=0.01,
        memory=Memory(peak_allocated_gib=rng.uniform(0.2, 3.5)),
        wrap_time_s=0.2,
        warmup_steps=4,
        measured_steps=24,
        window_step_times_s=windows,
        trajectory=tuple(
            StepRecord(step=step, loss=7.0, grad_norm=1.0, parameter_sum=1.0, parameter_square_sum=9.0)
            for step in range(3)
        ),
        losses=tuple(7 - 0.05 * step for step in range(31)),
        gradient_accumulation=1,
        elapsed_s=5.0,
    )


def fill(database: Database, studies: int, trials: int) -> None:
    """Store answered studies, each with trials that have one run and one attempt."""
    rng = random.Random(7)
    with database.write() as session:
        inventory = Inventory(cluster=CLUSTER, fingerprint=FINGERPRINT)
        worker = workers.put(session, "made-up", "session-00", inventory, START)
        key = worker.fingerprint_key
        for index in range(studies):
            identity, moment = f"study-{index:012x}", START + timedelta(minutes=index)
            measured = [measurement(rng) for _ in range(trials)]
            configs = [configuration(number, rng) for number in range(trials)]
            session.execute(insert(StudyRow), [_study(identity, index, moment, configs, measured, key)])
            first = index * trials + 1
            session.execute(
                insert(TrialRow),
                [
                    {
                        "id": first + number, "study_id": identity, "number": number, "state": TrialState.COMPLETE,
                        "origin": "sampler", "config": config, "config_key": config.content_key(), "failure": None,
                        "created_at": moment, "finished_at": moment + timedelta(seconds=number),
                    }
                    for number, config in enumerate(configs)
                ],
            )  # fmt: skip
            runs = [_run(identity, first + n, n, moment, value, worker.id, key) for n, value in enumerate(measured)]
            session.execute(insert(RunRow), runs)
            session.execute(
                insert(AttemptRow),
                [
                    {
                        "run_id": run["id"], "attempt": 1, "worker_id": worker.id, "worker_session": "session-00",
                        "started_at": moment, "finished_at": moment, "end": "complete", "failure": None, "gpu_seconds": 10.0,
                        "report_key": None,
                    }
                    for run in runs
                ],
            )  # fmt: skip


def _study(
    identity: str, index: int, moment: datetime, configs: list[TrialConfig], measured: list[Measurement], key: str
) -> dict[str, Any]:
    model = preset(preset_names()[index % len(preset_names())])
    workload = Workload(sequence_length=64 * (1 + index % 40), global_batch=16)
    best, base = _contender(len(configs) - 1, configs, measured), _contender(0, configs, measured)
    speedup = Speedup(value=1.4, ci95=(1.2, 1.6), pairs=5)
    return {
        "id": identity, "version": 1, "state": StudyState.COMPLETE, "phase": StudyPhase.DONE,
        "spec": StudySpec(model=model, workload=workload), "cluster": CLUSTER, "baseline": None, "notes": [],
        "profile": None, "fingerprint_key": key, "gpu_seconds": 1000.0, "comparison_round": 1, "match": None, "best_so_far": best,
        "result": StudyResult(best=best, baseline=base, speedup=speedup, verdict=Verdict.CONFIRMED), "reason": None,
        "created_at": moment, "finished_at": moment + timedelta(minutes=9),
    }  # fmt: skip


def _contender(number: int, configs: list[TrialConfig], measured: list[Measurement]) -> Contender:
    return Contender(
        trial_number=number,
        config=configs[number],
        description=configs[number].describe(),
        tokens_per_s_per_gpu=measured[number].tokens_per_s_per_gpu,
        peak_allocated_gib=measured[number].memory.peak_allocated_gib,
        peak_reserved_gib=None,
        runs=5,
    )


def _run(
    study: str, trial: int, position: int, moment: datetime, value: Measurement, worker: str, key: str
) -> dict[str, Any]:
    return {
        "id": f"run-{trial:016x}", "study_id": study, "trial_id": trial, "position": position, "purpose": "search",
        "comparison_round": 0, "state": TrialState.COMPLETE, "attempt": 1, "worker_id": worker, "worker_session": "session-00",
        "started_at": moment, "lease_until": None, "fingerprint_key": key, "measurement": value, "failure": None,
        "progress": None, "log_tail": None, "created_at": moment, "finished_at": moment,
    }  # fmt: skip


def profile(database: Database, study: str) -> None:
    """Store what a run under the profiler told of a study's trial 7."""
    with database.write() as session:
        of_trial = select(RunRow).where(RunRow.study_id == study, RunRow.position == 7)
        run = session.scalars(of_trial).one()
        run.purpose, run.measurement, run.diagnosis = RunPurpose.TRACE, None, synthetic_diagnosis.diagnosis(7)
