"""Costs of the backends' own machinery, and the number of their collectives."""

from dataclasses import replace

import numpy as np
import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Strategy, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.prediction.backends.main_gradients import bucket_count
from shardtune.tuner.prediction.backends.registry import micro_batch_launches, traffic
from shardtune.tuner.prediction.candidates import DDP, MIB, Dtypes, Implementation, from_rows
from shardtune.tuner.prediction.collectives import Traffic
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.tuner.prediction.rates import CPU_RATES, Network
from shardtune.tuner.prediction.shapes.config_shape import from_config
from shardtune.tuner.prediction.tensors import buckets_filled, modules_above
from shardtune.tuner.prediction.throughput import step_times
from tests.support.values.tuner_inputs import cpu

TINY = from_config(preset("llama-tiny").config)
NETWORK = Network(intra=1e9, inter=1e9, gpus_per_node=8, host_link=1e9)


def _launches(strategy: Strategy, precision: str = "bf16-mixed", accumulation: int = 1) -> float:
    candidates = from_configs([TrialConfig(strategy=strategy)], 64, 2, 2 * accumulation)
    return float(micro_batch_launches(TINY, candidates, Dtypes.of(PRECISIONS[precision]), Implementation())[0])


def _traffic(strategy: Strategy, accumulation: int) -> Traffic:
    candidates = from_configs([TrialConfig(strategy=strategy)], 64, 2, 2 * accumulation)
    return traffic(TINY, candidates, Dtypes(), Implementation(), NETWORK)


def test_fewer_units_cost_the_host_less() -> None:
    alone, paired = (_launches(Fsdp2Config(dp_shard=2, blocks_per_unit=blocks)) for blocks in (1, 2))
    assert paired < alone


def test_a_micro_batch_without_reduction_costs_less() -> None:
    every, last = (_launches(Fsdp2Config(dp_shard=2, grad_sync=sync), accumulation=4) for sync in ("every", "last"))
    assert last < every


def test_ddp_pays_for_casts_where_computation_is_in_another_dtype() -> None:
    assert _launches(DdpConfig(), "fp32") < _launches(DdpConfig(), "bf16-mixed")


def test_autocast_costs_ddp_no_casts_of_its_own_but_memory_traffic_and_gathers_in_float32() -> None:
    def parts(precision: str, strategy: Strategy) -> dict[str, float]:
        workload = Workload(sequence_length=64, global_batch=2, precision=PRECISIONS[precision])
        step = evaluate(TINY, from_configs([TrialConfig(strategy=strategy)], 64, 2, 2), workload, cpu(2)).step
        assert step is not None
        return {name: float(value[0]) for name, value in step.parts.items()}

    mixed, autocast = (parts(precision, DdpConfig()) for precision in ("bf16-mixed", "bf16-autocast"))
    assert autocast["backend"] < mixed["backend"] and autocast["elementwise"] > mixed["elementwise"]
    mixed, autocast = (parts(precision, Fsdp2Config(dp_shard=2)) for precision in ("bf16-mixed", "bf16-autocast"))
    assert autocast["communication"] > mixed["communication"]


def test_on_cpu_ranks_the_backend_s_share_is_a_part_of_its_own() -> None:
    workload = Workload(sequence_length=64, global_batch=2)
    strategies = (Fsdp2Config(dp_shard=2), ZeroConfig(stage=2))
    candidates = from_configs([TrialConfig(strategy=strategy) for strategy in strategies], 64, 2, 2)
    step = evaluate(TINY, candidates, workload, cpu(2)).step
    assert step is not None
    assert np.allclose(sum(step.parts.values()), step.total)
    assert step.parts["backend"][0] > step.parts["backend"][1] > 0


def test_fsdp2_gathers_in_every_micro_batch_also_what_it_keeps_after_forward() -> None:
    """torch 2.13 frees parameters after each backward, whatever `reshard_after_forward` says."""
    once, often = (_traffic(Fsdp2Config(dp_shard=2, reshard_after_forward=False), n).forward[0] for n in (1, 4))
    assert once == pytest.approx(often)


@pytest.mark.parametrize(
    "strategy", [DdpConfig(grad_sync="last"), DdpConfig(), Fsdp2Config(dp_replicate=2, dp_shard=1)]
)
@pytest.mark.parametrize("accumulation", [1, 64])
def test_no_step_waits_for_more_communication_than_it_has(strategy: Strategy, accumulation: int) -> None:
    """DDP without reductions between micro batches reduces once, however many micro batches a step has."""
    candidates = from_configs([TrialConfig(strategy=strategy)], 64, 2, 2 * accumulation)
    for rates in (CPU_RATES, replace(CPU_RATES, overlap=0.85, serial=False)):
        step = step_times(TINY, candidates, Dtypes(), Implementation(), rates, NETWORK)
        assert 0 < step.exposed[0] <= step.communication[0]


def test_fsdp1_keeps_parameters_over_micro_batches_without_reduction() -> None:
    kept = Fsdp1Config(dp_shard=2, sharding_strategy="SHARD_GRAD_OP", grad_sync="last")
    once, often = (_traffic(kept, n).forward[0] for n in (1, 4))
    assert often == pytest.approx(once / 4)


def test_zero_3_gathers_persistent_parameters_once_a_step() -> None:
    none, small = (
        _traffic(ZeroConfig(stage=3, stage3_param_persistence_threshold=size), 1) for size in (0, 1_000_000_000)
    )
    assert none.forward[0] > 0 == small.forward[0]
    assert small.after_step[0] > 0 == none.after_step[0]


def test_gradients_fill_buckets_in_turn_and_large_ones_go_alone() -> None:
    gpt2 = from_config(preset("gpt2").config)  # four matrices a block, the smallest of 768² elements
    buckets = buckets_filled(gpt2, np.array([1.0, 700_000.0, float(gpt2.parameters)]))
    assert buckets[0] == pytest.approx(12 * 12, abs=3)  # every parameter by itself
    assert 12 * 4 <= buckets[1] <= 12 * 8 + 2
    assert buckets[2] == 1


def test_ddp_with_main_gradients_sends_one_call_for_each_bucket() -> None:
    """In nanotron's 1B, gate and up reach 25 MiB together, down alone, and o with q, k and v in one matrix."""
    shape = replace(
        TINY, layers=16, hidden=2048, heads=32, kv_heads=32, head_dim=64, ffn=8192, vocab=131_072, tied=True
    )
    impl, network = (
        Implementation(main_gradients=True),
        Network(intra=300e9, inter=50e9, gpus_per_node=8, host_link=1e9),
    )
    rows = from_rows([{"backend": DDP, "replicate": 128, "ddp_bucket": size * MIB} for size in (1e-6, 25, 1e6)])
    assert bucket_count(shape, rows, Dtypes()).tolist() == [4 * 16 + 2, 3 * 16 + 2, 1]
    split = from_rows([{"backend": DDP, "replicate": 64, "tensor": size} for size in (1, 4)])
    whole, quarter = bucket_count(shape, split, Dtypes())
    assert quarter < 0.5 * whole  # each tensor rank has a quarter of each matrix
    seconds = traffic(shape, rows, Dtypes(), impl, network).last_backward
    assert seconds[0] > seconds[1] > seconds[2]


def test_modules_that_stay_gathered_are_not_fetched() -> None:
    modules = modules_above(TINY, np.array([0.0, float(TINY.hidden), 1e12]))
    assert modules.tolist() == [9 * TINY.layers + 3, 7 * TINY.layers + 2, 0]


def test_bf16_optimizer_has_buffers_of_its_own() -> None:
    """DeepSpeed reduces stage 1's fp32 gradients outside ZeRO's buckets; measured: equally fast for any bucket size."""

    def seconds(stage: int) -> list[float]:
        sizes = (16_384, 10_000_000)
        return [float(_traffic(ZeroConfig(stage=stage, reduce_bucket_size=s), 1).last_backward[0]) for s in sizes]

    small, large = seconds(1)
    assert small == large
    small, large = seconds(2)
    assert small > 1.2 * large
