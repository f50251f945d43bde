"""Blocks' inputs in host memory: what they free on the device, take on the host, and cost in time."""

import numpy as np
import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Strategy, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.objective import Objective
from shardtune.tuner.prediction import memory_gate
from shardtune.tuner.prediction.calibration import MemoryCalibration
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate
from shardtune.tuner.prediction.neighbours import neighbours
from shardtune.tuner.prediction.predict import predict
from shardtune.tuner.prediction.shapes.config_shape import from_config
from tests.support.values.tuner_inputs import cpu, gpus

SHAPE = from_config(preset("llama-3.1-8b").config)
LENGTH = 32_768
WORKLOAD = Workload(sequence_length=LENGTH, global_batch=16)
CLUSTER = gpus().model_copy(update={"gpu": "NVIDIA H100 80GB HBM3"})
INPUT = LENGTH * 4096 * 2
"""Bytes of one block's input in bfloat16: 256 MiB, a power of two."""
PLAIN = TrialConfig(strategy=Fsdp2Config(dp_shard=8), activation_checkpointing="full", loss="chunked")
OFFLOADED = PLAIN.model_copy(update={"activation_offload": True})


def evaluated(*configs: TrialConfig, length: int = LENGTH, cluster: object = CLUSTER) -> Evaluation:
    workload = WORKLOAD.model_copy(update={"sequence_length": length})
    return evaluate(SHAPE, from_configs(configs, length, 8, 16), workload, cluster)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "strategy",
    [DdpConfig(), ZeroConfig(stage=1), ZeroConfig(stage=3), Fsdp1Config(dp_shard=8), Fsdp2Config(dp_shard=8)],
    ids=lambda strategy: strategy.describe(),
)
def test_the_device_keeps_two_inputs_instead_of_one_for_each_block(strategy: Strategy) -> None:
    configs = [config.model_copy(update={"strategy": strategy}) for config in (PLAIN, OFFLOADED)]
    on_device, on_host = evaluated(*configs).memory.allocated
    # One block's input is used and one is on its way back; all 32 were kept before, or 31 from the second block of backward.
    assert 29 * INPUT <= on_device - on_host <= 30 * INPUT


def test_the_host_keeps_one_input_for_each_checkpointed_block_of_one_micro_batch() -> None:
    memory = evaluated(PLAIN, OFFLOADED, OFFLOADED.model_copy(update={"checkpoint_every": 4})).memory
    assert memory.host.tolist() == [0, 32 * INPUT, 8 * INPUT]


def test_page_locked_inputs_are_rounded_to_powers_of_two() -> None:
    length = LENGTH + 128
    memory = evaluated(OFFLOADED, length=length).memory
    assert memory.host.tolist() == [32 * 2 * INPUT]


def test_copies_are_hidden_while_a_block_computes_longer_than_they_take() -> None:
    # A block of 8B computes long over 32 K tokens, and one input takes 5 ms over PCIe.
    step = evaluated(PLAIN, OFFLOADED).step
    assert step is not None
    link = 50e9
    extra = float(np.diff(step.total)[0])
    assert 0 < extra < 2 * 3 * INPUT / link, "only the first copy back of each of two micro batches is waited for"
    assert step.parts["offload"][0] == 0 < step.parts["offload"][1]


def test_a_slow_link_makes_blocks_wait() -> None:
    slow = CLUSTER.model_copy(update={"host_link_gb_per_s": 1})
    step = evaluated(PLAIN, OFFLOADED, cluster=slow).step
    assert step is not None
    assert float(np.diff(step.total)[0]) > 2 * 32 * 0.2


def test_a_cpu_rank_copies_by_itself() -> None:
    step = evaluated(PLAIN, OFFLOADED, cluster=cpu(8)).step
    assert step is not None and np.diff(step.total)[0] > 0


def test_a_cpu_ranks_peak_is_a_devices_and_its_host_memory_is_apart() -> None:
    memory = evaluated(PLAIN, OFFLOADED, cluster=cpu(8)).memory
    assert memory.allocated[0] - memory.allocated[1] == pytest.approx(30 * INPUT, rel=0.001)
    assert memory.host[1] - memory.host[0] == 32 * INPUT


def test_the_gate_holds_the_hosts_memory_against_all_ranks_of_a_node() -> None:
    small = CLUSTER.model_copy(update={"host_memory_gib": 63})
    rejected = memory_gate.reject_if_too_large(OFFLOADED, SHAPE, WORKLOAD, small, Objective(), MemoryCalibration())
    assert (
        rejected is not None
        and "offloading needs 64.0 GiB of host memory on each node (8 ranks × 8.00 GiB)" in rejected.reason
    )
    assert "rounding" not in rejected.reason
    larger = CLUSTER.model_copy(update={"host_memory_gib": 65})
    fits = memory_gate.reject_if_too_large(OFFLOADED, SHAPE, WORKLOAD, larger, Objective(), MemoryCalibration())
    assert fits is None


def test_the_gate_says_how_much_of_it_is_rounding() -> None:
    workload = WORKLOAD.model_copy(update={"sequence_length": LENGTH + 128})
    small = CLUSTER.model_copy(update={"host_memory_gib": 63})
    rejected = memory_gate.reject_if_too_large(OFFLOADED, SHAPE, workload, small, Objective(), MemoryCalibration())
    assert rejected is not None and "63.8 GiB of it are rounding" in rejected.reason


def test_the_gate_counts_inputs_of_cpu_ranks_in_the_memory_that_they_share() -> None:
    node = cpu(8).model_copy(update={"memory_gib": 400, "host_memory_gib": 200})
    rejected = memory_gate.reject_if_too_large(OFFLOADED, SHAPE, WORKLOAD, node, Objective(), MemoryCalibration())
    assert (
        rejected is not None
        and "CPU ranks keep offloaded inputs in the memory that they share: 8 ranks" in rejected.reason
    )
    roomy = node.model_copy(update={"host_memory_gib": 4000})
    assert memory_gate.reject_if_too_large(OFFLOADED, SHAPE, WORKLOAD, roomy, Objective(), MemoryCalibration()) is None


def test_the_last_level_of_less_memory_is_inputs_in_host_memory() -> None:
    near = neighbours(PLAIN, CLUSTER)
    (first,) = (each for each in near if each.changes == ("blocks' inputs in host memory",))
    assert first.config == OFFLOADED and first.weight == 4
    assert not any(
        each.config.activation_offload < OFFLOADED.activation_offload for each in neighbours(OFFLOADED, CLUSTER)
    )
    compiled = neighbours(PLAIN.model_copy(update={"compile": True}), CLUSTER)
    assert compiled and not any(each.config.activation_offload for each in compiled)


def test_no_neighbour_brings_inputs_in_host_memory_back_to_the_device() -> None:
    every_third = OFFLOADED.model_copy(update={"checkpoint_every": 3})
    near = neighbours(every_third, CLUSTER)
    assert all(each.config.activation_offload for each in near)
    assert {each.config.checkpoint_every for each in near} == {3, 2, 1}


def test_where_memory_lacks_only_that_much_it_is_proposed() -> None:
    workload = Workload(sequence_length=131_072, global_batch=8)
    answer = predict(SHAPE, workload, CLUSTER, PLAIN)
    assert answer.memory.verdict != "fits" and answer.cheapest_change is not None
    assert "blocks' inputs in host memory" in answer.cheapest_change.description
