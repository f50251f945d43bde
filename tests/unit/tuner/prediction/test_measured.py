"""Predictions on hardware that was measured instead of looked up."""

import numpy as np
import pytest

from shardtune.api_schemas.machines.hardware import CollectiveTime, MeasuredHardware
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.prediction.collectives import ring_seconds
from shardtune.tuner.prediction.evaluation import machine
from shardtune.tuner.prediction.predict import predict
from shardtune.tuner.prediction.rates import network_of
from shardtune.tuner.prediction.throughput.measured_rates import fallback_network, measured_network, measured_rates
from tests.support.values.tuner_inputs import WORKLOAD, cpu, gpus, shape

MIB = 2**20
MEASURED = MeasuredHardware(
    bf16_flops=2e11,
    fp32_flops=8e10,
    copy_bytes_per_s=2e10,
    launch_s=3e-6,
    collectives=tuple(
        CollectiveTime(operation=name, bytes=size, seconds=seconds * (2 if name == "all_reduce" else 1))
        for name in ("all_gather", "all_reduce")
        for size, seconds in ((MIB, 1e-3), (16 * MIB, 2e-2))
    ),
)


@pytest.mark.parametrize(("size", "expected"), [(MIB, 1e-3), (16 * MIB, 2e-2), (64 * MIB, 8e-2)])
def test_a_collective_takes_what_was_measured_for_its_size(size: int, expected: float) -> None:
    network = measured_network(MEASURED, cpu(2), fallback_network(cpu(2)))
    values, two = np.array([1.0]), np.array([2.0])
    assert ring_seconds(np.array([float(size)]), values, two, network) == pytest.approx(expected)
    assert ring_seconds(np.array([2.0 * size]), two, two, network) == pytest.approx(2 * expected)


def test_ranks_that_send_nothing_to_each_other_take_no_time_in_the_candidates_shape() -> None:
    network = network_of(catalogue.find("h100-80gb"), 8)
    none, eight, nodes = np.zeros(3), np.full(3, 8.0), np.array([1.0, 8.0, 64.0])
    assert ring_seconds(none, 4.0, eight, network, "all_reduce").tolist() == [0.0, 0.0, 0.0]
    assert ring_seconds(1e6, nodes, np.ones(()), network, stride=eight).tolist() == [0.0, 0.0, 0.0]
    some = ring_seconds(np.array([0.0, 1e6, 1e6]), 4.0, nodes, network)
    assert (some > 0).tolist() == [False, True, True]


def test_between_nodes_that_nobody_measured_cpu_ranks_have_gloo_s_network_measured_within_a_node_or_not() -> None:
    cluster = cpu(2).model_copy(update={"nodes": 4})
    size, calls, eight = np.array([float(MIB)]), np.array([1.0]), np.array([8.0])
    known, guessed = (
        float(ring_seconds(size, calls, eight, machine(cluster, measured=measured).network)[0])
        for measured in (MEASURED, None)
    )
    assert known == pytest.approx(guessed)


def test_each_operation_has_its_own_time_and_a_missing_one_another_s() -> None:
    network = measured_network(MEASURED, cpu(2), fallback_network(cpu(2)))
    size, values, two = np.array([float(MIB)]), np.array([1.0]), np.array([2.0])
    gather, reduce, both = (
        float(ring_seconds(size, values, two, network, operation)[0])
        for operation in ("all_gather", "reduce_scatter", "all_reduce")
    )
    assert (gather, reduce, both) == pytest.approx((1e-3, 1e-3, 2e-3))


def test_a_ring_over_nodes_takes_longer_with_each_rank_and_an_all_reduce_may_take_a_tree() -> None:
    """NCCL gathers and scatters in rings alone: 224 hops inside 32 nodes at 3.4 us, 31 between them at 14 us."""
    network = network_of(catalogue.find("h100-80gb"), 8)
    small, calls = np.array([1e6]), np.array([1.0])
    gather, reduce = (
        [float(ring_seconds(small, calls, np.array([ranks]), network, operation)[0]) for ranks in (16.0, 64.0, 256.0)]
        for operation in ("all_gather", "all_reduce")
    )
    assert gather[2] - gather[1] == pytest.approx(168 * 3.4e-6 + 24 * 14e-6, rel=0.05)
    assert gather[0] < gather[1] < gather[2] and reduce[2] < gather[2]


def test_rates_follow_the_precision() -> None:
    mixed, full = measured_rates(MEASURED, "cpu", in_fp32=False), measured_rates(MEASURED, "cpu", in_fp32=True)
    assert mixed.matmul_flops / full.matmul_flops == pytest.approx(2.5)
    assert mixed.memory_bytes == full.memory_bytes == 2e10 and mixed.overlap == 0


def test_a_gpu_nobody_knows_has_rates_once_measured() -> None:
    unknown = gpus().model_copy(update={"gpu": "Novel 9"})
    with pytest.raises(ValueError, match="Novel 9"):
        machine(unknown)
    actual_machine = machine(unknown, measured=MEASURED)
    assert actual_machine.rates is not None and actual_machine.peak_flops is None


RING = {(2, 1): 4.2e9 / 8, (2, 2): 0.1e9 / 8, (4, 2): 0.19e9 / 8}
"""Bus bandwidth by ranks and nodes of a group, measured over 200 Mbit/s between two hosts of two ranks."""
OVER_HOSTS = MEASURED.model_copy(
    update={
        "collectives": tuple(
            CollectiveTime(
                operation="all_gather", bytes=size, seconds=size * (n - 1) / n / RING[n, nodes], ranks=n, nodes=nodes
            )
            for n, nodes in RING
            for size in (MIB, 4 * MIB)
        )
    }
)


def test_groups_within_hosts_across_hosts_and_over_all_take_what_was_measured_of_each() -> None:
    cluster = cpu(2).model_copy(update={"nodes": 2})
    network = measured_network(OVER_HOSTS, cluster, fallback_network(cluster))
    size, values = np.array([4.0 * MIB]), np.array([1.0])

    def seconds(ranks: int, stride: float) -> float:
        return float(ring_seconds(size, values, np.array([float(ranks)]), network, "all_gather", stride)[0])

    expected = [4 * MIB * (n - 1) / n / rate for (n, _), rate in RING.items()]
    assert [seconds(2, 1), seconds(2, 2), seconds(4, 1)] == pytest.approx(expected)


def test_with_a_slow_network_between_hosts_the_mesh_that_follows_them_is_predicted_fastest() -> None:
    """Measured so on these links (in float32): HSDP 1.00 s a step, DDP 1.42, full shard 2.53."""
    cluster = cpu(2).model_copy(update={"nodes": 2})
    workload = WORKLOAD.model_copy(update={"global_batch": 4})
    configs = [Fsdp2Config(dp_replicate=2, dp_shard=2), DdpConfig(), Fsdp2Config(dp_shard=4)]
    predicted = [
        predict(
            shape("llama-tiny"), workload, cluster, TrialConfig(strategy=config), limits=False, measured=OVER_HOSTS
        ).speed
        for config in configs
    ]
    hybrid, *others = [prediction.tokens_per_s_per_gpu for prediction in predicted if prediction is not None]
    assert len(others) == 2 and hybrid > 1.2 * max(others)


def test_memory_that_goes_back_to_the_system_costs_cpu_ranks_time_and_gpus_none() -> None:
    """Half of what a micro batch holds is faulted in again; with less held, there is less of it."""
    model = shape("llama-tiny")
    full, kept, checkpointed, both = (
        TrialConfig(strategy=DdpConfig(), micro_batch=4, malloc=malloc, activation_checkpointing=how)
        for how in ("none", "full")
        for malloc in ("default", "keep")
    )
    on_cpu, on_gpu = (
        [
            predict(model, WORKLOAD, place, item, measured=MEASURED).speed.step_time_s
            for item in (full, kept, checkpointed, both)
        ]
        for place in (cpu(2), gpus(2))
    )
    assert on_cpu[0] - on_cpu[1] > on_cpu[2] - on_cpu[3] > 0 and on_gpu[0] == on_gpu[1]
