"""Effects of tensor parallelism on predicted memory and time."""

from dataclasses import replace

import numpy as np
import pytest

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.prediction.backends.registry import states
from shardtune.tuner.prediction.candidates import DDP, ZERO, Candidates, Dtypes, Implementation, from_rows
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.tuner.prediction.predict import predict
from shardtune.tuner.prediction.rates import CPU_NETWORK, CPU_RATES, network_of, rates_of
from shardtune.tuner.prediction.shapes.config_shape import from_config
from shardtune.tuner.prediction.throughput.compute import ComputeTimes, compute_times
from shardtune.tuner.prediction.throughput.exchange import exchange_launches, exchange_seconds
from tests.support.values.tuner_inputs import gpus

SHAPE = from_config(preset("llama-3.1-8b").config)
WORKLOAD = Workload(sequence_length=8192, global_batch=16)
CLUSTER = gpus(2, 8).model_copy(update={"gpu": "NVIDIA H100 80GB HBM3", "inter_node_gb_per_s": 50.0})
GPU = catalogue.find("NVIDIA H100 80GB HBM3")
NETWORK, PLAIN = network_of(GPU, 8), Implementation()


def test_more_ranks_to_a_model_hold_less_of_a_micro_batch_and_wait_for_each_other_longer() -> None:
    """Comparison at equal tokens of a step and equally spread states: each rank computes as much, and exchanges come on
    top."""
    strategies = [Fsdp2Config(dp_shard=16 // size, tensor_parallel=size) for size in (1, 2, 4, 8)]
    rows = from_configs([TrialConfig(strategy=strategy) for strategy in strategies], 8192, 16, 16)
    assert (rows.tokens * rows.accumulation).tolist() == [8192.0] * 4
    evaluation = evaluate(SHAPE, rows, WORKLOAD, CLUSTER)
    assert evaluation.step is not None
    terms = evaluation.memory.terms
    assert np.all(np.diff(terms["activations"] + terms["logits"]) < 0)
    assert np.allclose(terms["parameters"], terms["parameters"][0]) and np.allclose(
        terms["optimizer"], terms["optimizer"][0]
    )
    full = Fsdp2Config(dp_shard=16, grad_sync="last"), Fsdp2Config(dp_shard=2, tensor_parallel=8, grad_sync="last")
    again = evaluate(
        SHAPE, from_configs([TrialConfig(strategy=strategy) for strategy in full], 8192, 16, 16), WORKLOAD, CLUSTER
    )
    assert again.step is not None and again.step.exposed[1] > again.step.exposed[0]


def test_splitting_over_the_network_takes_longer_than_within_a_host() -> None:
    speeds = []
    for size in (8, 16):
        config = TrialConfig(strategy=Fsdp2Config(dp_shard=16 // size, tensor_parallel=size), micro_batch=size)
        rows = from_configs([config], 8192, 16, 16)
        step = evaluate(SHAPE, rows, WORKLOAD, CLUSTER).step
        assert step is not None
        speeds.append(float(step.tokens_per_s_per_gpu[0]))
    assert speeds[1] < 0.7 * speeds[0]


@pytest.mark.parametrize(("size", "why"), [(3, "number of ranks"), (16, "heads of keys")])
def test_what_cannot_be_split_is_not_predicted(size: int, why: str) -> None:
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=16 // size, tensor_parallel=size))
    with pytest.raises(ValueError, match=why):
        predict(SHAPE, WORKLOAD, CLUSTER, config)


@pytest.mark.parametrize("row", [{"backend": DDP, "replicate": 4}, {"backend": ZERO, "stage": 1, "shard": 4}])
@pytest.mark.parametrize("impl", [PLAIN, Implementation(main_gradients=True)])
def test_tensor_ranks_divide_the_states_of_ddp_and_zero_1(row: dict[str, float], impl: Implementation) -> None:
    rows = from_rows([{"sequence": 64, "tensor": size, "reduce_bucket": 1e6, **row} for size in (1, 4)])
    kept = states(SHAPE, rows, Dtypes(), impl)
    for part in (kept.parameters, kept.masters, kept.optimizer):
        assert part[1] == pytest.approx(part[0] / 4)
    assert kept.gradients_late[1] < 0.3 * kept.gradients_late[0]


def split(tokens: float, size: int = 2) -> Candidates:
    """One layout with this many tokens of a micro batch on each of `size` tensor-parallel ranks."""
    return from_rows([{"sequence": tokens * size, "tensor": size, "backend": DDP, "accumulation": 1}])


def cost_of_host_time(serial: bool, tokens: float) -> tuple[ComputeTimes, float]:
    """Computation times on ranks that exchange, and the seconds that the host's part of the exchanges adds."""
    rates, network = (CPU_RATES, CPU_NETWORK) if serial else (rates_of(GPU), NETWORK)
    times = compute_times(SHAPE, split(tokens), Dtypes(), PLAIN, rates, network)
    without = replace(times, exchange_host=times.exchange_host * 0.0)
    assert times.exchange_host > 0 and times.exchange > 0
    return times, float(((times.total - without.total) / times.exchange_host)[0])


def test_host_time_of_exchanges_overlaps_with_a_busy_gpu_and_not_with_an_idle_one_or_a_cpu() -> None:
    _, busy = cost_of_host_time(serial=False, tokens=32_768)
    times, idle = cost_of_host_time(serial=False, tokens=16)
    assert times.device < times.launch_floor
    assert 0 <= busy < 0.1 and idle > 0.8
    _, cpu = cost_of_host_time(serial=True, tokens=32_768)
    assert cpu == pytest.approx(1.0)


def test_an_exchange_across_hosts_takes_as_many_late_steps_as_its_ring_has() -> None:
    on_time = replace(NETWORK, inter_step_s=0.0)
    calls = 2.0 * (2.0 * 2.0 * SHAPE.layers + 1.0)
    for size, steps in ((8, 0), (16, 15), (32, 31)):
        late, ring = (exchange_seconds(SHAPE, split(64, size), Dtypes(), network) for network in (NETWORK, on_time))
        assert late - ring == pytest.approx(calls * steps * NETWORK.inter_step_s)


def test_exchanges_cost_more_host_time_only_where_stages_are_on_several_hosts() -> None:
    slow = Implementation(spanning_exchange_s=0.3e-3)
    layouts = [{"stages": 1, "replicate": 4}, {"stages": 2, "replicate": 1}, {"stages": 2, "replicate": 4}]
    rows = from_rows([{"sequence": 64, "tensor": 4, "backend": DDP, **layout} for layout in layouts])
    launches = [exchange_launches(SHAPE, rows, impl, rates_of(GPU), NETWORK) for impl in (PLAIN, slow)]
    per_exchange = (launches[1] - launches[0]) * rates_of(GPU).launch_s / (8.0 * SHAPE.layers)
    assert per_exchange == pytest.approx([0.0, 0.0, 4 * 0.3e-3])
