"""A host that launches kernels more slowly than the catalogue says, told from a GPU that computes more slowly."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.measurements import Measurement, Memory
from shardtune.tuner.prediction import learning, traced_shape
from shardtune.tuner.prediction.calibration import HOST_FACTORS, UNCALIBRATED, Calibrations
from shardtune.tuner.prediction.shapes import config_shape
from shardtune.tuner.search import space as spaces
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.guided_sampler.predicted_rows import PredictionBasis, predict_rows

MODEL = preset("llama-3.2-1b").config
assert MODEL is not None
SHAPE = config_shape.from_config(MODEL)
WORKLOAD = Workload(sequence_length=2048, global_batch=16, precision=PRECISIONS["bf16-mixed"])
H200 = Cluster(device="cuda", gpu="NVIDIA H200", gpus_per_node=1, memory_gib=139.8, host_memory_gib=125.0)
WAITING = tuple(
    TrialConfig(strategy=strategy) for strategy in (DdpConfig(), Fsdp2Config(dp_shard=1), ZeroConfig(stage=1))
)
"""Micro batches of one sample, whose kernels are shorter than their launches on a slow host."""
COMPUTING = tuple(TrialConfig(strategy=config.strategy, micro_batch=8, compile=True) for config in WAITING)


def speeds(configs: Sequence[TrialConfig], calibrations: Calibrations, cluster: Cluster = H200) -> np.ndarray:
    predicted = learning.predict_speeds(SHAPE, WORKLOAD, cluster, configs, calibrations)
    assert predicted is not None
    return predicted


def learnt_from(configs: Sequence[TrialConfig], host: float, device: float = 1.0) -> Calibrations:
    """Calibrations by trials on a host so many times as slow, and a GPU that takes `device` times as long."""
    truth = Calibrations(replace(UNCALIBRATED, host=host))
    measured = [measurement(speed / device) for speed in speeds(configs, truth)]
    return learning.learn(learning.compare(learning.MeasuredTrials(SHAPE, WORKLOAD, H200, configs, measured)))


def measurement(tokens_per_s: float) -> Measurement:
    return Measurement(
        tokens_per_s_per_gpu=tokens_per_s,
        step_time_s=WORKLOAD.tokens_per_step / tokens_per_s,
        step_time_half_width_s=0.0,
        mfu=None,
        memory=Memory(peak_allocated_gib=None),
        wrap_time_s=0.0,
        warmup_steps=1,
        measured_steps=1,
        window_step_times_s=(),
        ranks=(),
        trajectory=(),
        losses=(),
        gradient_accumulation=1,
        elapsed_s=1.0,
    )


def test_trials_that_wait_for_the_host_do_not_make_the_gpu_look_slow() -> None:
    """Three eager trials at 2.8 times the launch cost: what computes is predicted as before, within a tenth."""
    learnt = learnt_from(WAITING, 2.8)
    assert learnt.speed.host >= 2.0
    assert speeds(COMPUTING, learnt) == pytest.approx(speeds(COMPUTING, Calibrations()), rel=0.1)


def test_a_gpu_that_computes_slowly_is_not_taken_for_a_slow_host() -> None:
    learnt = learnt_from(COMPUTING, 1.0, device=1.5)
    assert learnt.speed.host == 1.0
    assert speeds(COMPUTING, learnt) == pytest.approx(speeds(COMPUTING, Calibrations()) / 1.5, rel=0.1)


def test_cpu_ranks_have_one_factor_since_their_launches_overlap_with_nothing() -> None:
    cpu = Cluster(device="cpu", gpus_per_node=2, memory_gib=9.0, host_memory_gib=20.0)
    trials = learning.MeasuredTrials(SHAPE, WORKLOAD, cpu, WAITING[:1], [measurement(100.0)])
    (run,) = learning.compare(trials)
    assert tuple(run.parts_by_host) == (1.0,)
    (on_gpu,) = learning.compare(replace(trials, cluster=H200))
    assert tuple(on_gpu.parts_by_host) == HOST_FACTORS


def test_a_pool_predicts_all_of_its_rows_for_a_new_factor() -> None:
    workload, basis = WORKLOAD, PredictionBasis(SHAPE, WORKLOAD, H200)
    space = spaces.build(workload, H200, traced_shape.summary_of(SHAPE), SpaceLimits(backends=("ddp",)))
    pool = Pool(space, basis, list(space.enumerate())[:20])
    first = pool.parts_at(2.8)
    assert len(first) == 20 and not np.allclose(first, pool.parts)
    added = pool.rows([space.canonical(TrialConfig(strategy=DdpConfig(bucket_cap_mb=25), micro_batch=16))])
    again = predict_rows(basis, [pool.config(row) for row in range(pool.size)], 2.8).parts
    assert again is not None and np.allclose(pool.parts_at(2.8), again) and pool.size > max(added)
    assert pool.parts_at(1.0) is pool.parts
