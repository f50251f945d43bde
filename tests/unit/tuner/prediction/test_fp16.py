"""Predictions of float16: the bytes of bfloat16, the rates of float16's tensor cores, one pass more over the gradients."""

from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.optimizers import Muon
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate
from tests.support.values.prediction_tables import predicted_table
from tests.support.values.tuner_inputs import shape

V100 = Cluster(gpu="V100-SXM2-32GB", gpus_per_node=8, memory_gib=31, host_memory_gib=400)
FSDP2 = TrialConfig(strategy=Fsdp2Config(dp_shard=8), micro_batch=2)


def evaluated(precision: str, config: TrialConfig = FSDP2, **options: Any) -> Evaluation:
    workload = Workload(sequence_length=1024, global_batch=16, precision=PRECISIONS[precision])
    return evaluate(shape("llama-3.2-1b"), from_configs([config], 1024, 8, 16), workload, V100, **options)


def speed(evaluation: Evaluation) -> float:
    assert evaluation.tokens_per_s_per_gpu is not None
    return float(evaluation.tokens_per_s_per_gpu[0])


@pytest.mark.parametrize("stage", [None, 2, 3])
def test_float16_takes_the_bytes_of_bfloat16(stage: int | None) -> None:
    config = FSDP2 if stage is None else TrialConfig(strategy=ZeroConfig(stage=stage), micro_batch=2)
    low, other = (evaluated(name, config).total_gib[0] for name in ("fp16-mixed", "bf16-mixed"))
    assert low == pytest.approx(other)


def test_unscaling_is_one_pass_more_and_float32_far_slower() -> None:
    low, other, exact = (speed(evaluated(name)) for name in ("fp16-mixed", "bf16-mixed", "fp32"))
    assert 0.99 * other < low < other and low > 1.5 * exact


def test_a_rate_of_emulated_bfloat16_is_not_taken_for_float16s() -> None:
    measured = MeasuredHardware(bf16_flops=1e12, fp32_flops=14e12, copy_bytes_per_s=7e11, launch_s=1e-5)
    low, other = (speed(evaluated(name, measured=measured)) for name in ("fp16-mixed", "bf16-mixed"))
    assert low > 5 * other


def test_a_table_of_strategies_in_float16_names_no_offloaded_shards() -> None:
    request = PredictionRequest(model=preset("llama-3.2-1b"), cluster="8xv100-32gb", precision="fp16-mixed")
    table = predicted_table(request)
    assert table.precision == "fp16-mixed" and table.precision_note is None and len(table.predictions) >= 4
    with pytest.raises(ValueError, match=r"optimizer.kind \('muon'\) with precision"):
        predicted_table(request.model_copy(update={"optimizer": Muon()}))


def test_a_prediction_for_cpu_ranks_says_that_no_rate_of_float16_was_measured() -> None:
    def notes(cluster: Cluster | str, precision: str) -> str:
        request = PredictionRequest(model=preset("llama-tiny"), cluster=cluster, precision=precision)
        return " | ".join(predicted_table(request).notes)

    cpu = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    assert "no rate of float16 was measured on CPU ranks" in notes(cpu, "fp16-mixed")
    assert "no rate of float16" not in notes(cpu, "bf16-mixed") + notes("8xv100-32gb", "fp16-mixed")
