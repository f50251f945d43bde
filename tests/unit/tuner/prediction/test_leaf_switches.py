"""Oversubscribed leaf switches: how much of a node's network each group of ranks has."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from shardtune.api_schemas.machines.hardware import Cluster, CollectiveTime, MeasuredHardware
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.prediction.collectives import Operation, Pattern, ring_seconds
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate, machine
from shardtune.tuner.prediction.rates import Network, Uplinks
from tests.support.values.tuner_inputs import shape

GPUS = 4
FAST = Network(
    intra=1e15,
    inter=1e9,
    gpus_per_node=GPUS,
    host_link=1.0,
    intra_latency_s=0.0,
    inter_latency_s=0.0,
    intra_hop_s=0.0,
    inter_hop_s=0.0,
    half_bytes=0.0,
)
"""Network without latency, so that times are inverse to bandwidths."""


def slowness(
    uplinks: Uplinks, ranks: int, stride: int, pattern: Pattern = "ring", operation: Operation = "all_gather"
) -> float:
    """Factor by which uplinks lengthen a collective."""
    without, with_them = (
        float(
            ring_seconds(np.array([1e9]), np.ones(1), np.array([float(ranks)]), network, operation, stride, pattern)[0]
        )
        for network in (FAST, replace(FAST, uplinks=uplinks))
    )
    return with_them / without


def job(nodes: int, nodes_per_leaf: int, oversubscription: float, *, scattered: bool = False) -> Uplinks:
    return Uplinks(nodes_per_leaf, oversubscription, job_ranks=np.array([float(nodes * GPUS)]), scattered=scattered)


def node_groups(nodes: int, ranks: int, stride: int) -> list[list[int]]:
    """Node of each rank of each group of a job, whose groups of `ranks` ranks lie `stride` ranks apart."""
    span = ranks * stride
    return [
        [(start + offset + member * stride) // GPUS for member in range(ranks)]
        for start in range(0, nodes * GPUS, span)
        for offset in range(stride)
    ]


def ring_traffic(nodes: int, ranks: int, stride: int) -> dict[tuple[int, int], float]:
    """Bandwidth from node to node of all groups' rings, as a multiple of a node's network: a ring over the nodes by
    their ranks, in which each rank on a node has its part of the node's network."""
    sent: dict[tuple[int, int], float] = defaultdict(float)
    for places in node_groups(nodes, ranks, stride):
        own = list(dict.fromkeys(places))
        for here, there in pairwise([*own, own[0]]):
            sent[here, there] += places.count(own[0]) / GPUS
    return sent


def all_to_all_traffic(nodes: int, ranks: int, stride: int) -> dict[tuple[int, int], float]:
    sent: dict[tuple[int, int], float] = defaultdict(float)
    for places in node_groups(nodes, ranks, stride):
        own = list(dict.fromkeys(places))
        for here in own:
            for there in own:
                sent[here, there] += (here != there) * places.count(here) / GPUS / max(len(own) - 1, 1)
    return sent


def busiest_leaf(sent: dict[tuple[int, int], float], nodes_per_leaf: int) -> float:
    """Largest bandwidth that leaves a leaf switch."""
    out: dict[int, float] = defaultdict(float)
    for (here, there), rate in sent.items():
        out[here // nodes_per_leaf] += rate * (here // nodes_per_leaf != there // nodes_per_leaf)
    return max(out.values())


LAYOUTS = [
    (nodes, ranks, stride)
    for nodes in (4, 6, 8, 12, 16, 32)
    for stride in (1, 2, 4, 8, 16, 32)
    for ranks in (2, 3, 4, 8, 12, 16, 32, 64, 128)
    if nodes * GPUS % (ranks * stride) == 0 and ranks * stride > GPUS and ranks * stride % GPUS == 0
]


@pytest.mark.parametrize("nodes_per_leaf", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("pattern", ["ring", "all_to_all"])
def test_no_group_gets_more_than_the_busiest_leaf_has_and_groups_that_end_with_leaves_get_just_that(
    nodes_per_leaf: int, pattern: Pattern
) -> None:
    oversubscription, compared = 4.0, 0
    for nodes, ranks, stride in LAYOUTS:
        traffic = (ring_traffic if pattern == "ring" else all_to_all_traffic)(nodes, ranks, stride)
        needed = max(1.0, busiest_leaf(traffic, nodes_per_leaf) * oversubscription / nodes_per_leaf)
        actual = slowness(job(nodes, nodes_per_leaf, oversubscription), ranks, stride, pattern)
        place = f"{nodes} nodes, groups of {ranks} ranks {stride} apart"
        assert actual >= needed - 1e-9, place
        assert actual <= oversubscription + 1e-9, place
        leaf, span = nodes_per_leaf * GPUS, ranks * stride
        apart = max(stride // GPUS, 1)
        are_even = max(apart, nodes_per_leaf) % min(apart, nodes_per_leaf) == 0
        if nodes % nodes_per_leaf == 0 and are_even and (leaf % span == 0 or span % leaf == 0):
            assert actual == pytest.approx(needed), place
            compared += 1
    assert compared > 4


def test_a_ring_over_the_whole_job_leaves_each_leaf_once() -> None:
    """32 nodes a leaf, 2:1: the uplinks carry 16 nodes' traffic, and the ring needs one node's."""
    assert slowness(job(128, 32, 2.0), 128 * GPUS, 1) == 1.0
    assert slowness(job(128, 32, 2.0, scattered=True), 128 * GPUS, 1) == pytest.approx(2.0)


def test_replicas_of_shard_groups_lie_side_by_side() -> None:
    """HSDP: shard groups within a leaf have their whole network; replicas k nodes apart share the uplinks by k."""
    uplinks = job(64, 8, 4.0)
    within = [slowness(uplinks, shard * GPUS, 1) for shard in (1, 2, 4, 8)]
    across = [slowness(uplinks, 64 // shard, shard * GPUS) for shard in (1, 2, 4, 8, 16)]
    assert within == [1.0, 1.0, 1.0, 1.0]
    assert across == pytest.approx([1.0, 1.0, 2.0, 4.0, 4.0])


def test_stages_send_as_much_out_of_a_leaf_as_a_stage_has_nodes() -> None:
    uplinks = job(64, 8, 4.0)
    slow = [slowness(uplinks, 2, stage * GPUS, "neighbours") for stage in (1, 2, 4, 8, 16)]
    assert slow == pytest.approx([1.0, 1.0, 2.0, 4.0, 4.0])


def test_a_tree_needs_more_of_the_uplinks_than_a_ring() -> None:
    uplinks = job(64, 8, 4.0)
    hops = replace(FAST, inter_hop_s=1.0, inter_latency_s=1e-9, uplinks=uplinks)
    one, ranks = np.ones(1), np.array([16.0])
    size = np.array([1e9])
    tree = float(ring_seconds(size, one, ranks, hops, "all_reduce", 4 * GPUS)[0])
    without = float(ring_seconds(size, one, ranks, replace(hops, uplinks=None), "all_reduce", 4 * GPUS)[0])
    assert tree / without == pytest.approx(3.0, rel=1e-6)
    assert slowness(uplinks, 16, 4 * GPUS, operation="all_reduce") < 3.0


def test_a_job_within_one_leaf_has_its_whole_network() -> None:
    for nodes in (1, 3, 7, 8):
        assert slowness(job(nodes, 8, 4.0, scattered=True), nodes * GPUS, 1) == 1.0
        assert slowness(job(nodes, 8, 4.0), nodes * GPUS, 1, "all_to_all") == 1.0


CLUSTER = catalogue.parse_cluster("32x8xh100").model_copy(update={"inter_node_gb_per_s": 50.0})
LEAVES = CLUSTER.model_copy(update={"nodes_per_leaf": 8, "oversubscription": 4.0})
SHAPE = shape("llama-3.1-8b")
BY_NODE, BY_LEAF = (TrialConfig(strategy=Fsdp2Config(dp_shard=shard, dp_replicate=256 // shard)) for shard in (8, 64))
WHOLE, COPIES = TrialConfig(strategy=Fsdp2Config(dp_shard=256)), TrialConfig(strategy=DdpConfig())
STAGES = TrialConfig(strategy=Fsdp2Config(dp_shard=64, pipeline_parallel=4))


def evaluated(
    cluster: Cluster, *configs: TrialConfig, measured: MeasuredHardware | None = None, batch: int = 512
) -> Evaluation:
    candidates = from_configs(configs, 4096, cluster.world_size, batch)
    return evaluate(SHAPE, candidates, Workload(sequence_length=4096, global_batch=batch), cluster, measured=measured)


def seconds(cluster: Cluster, *configs: TrialConfig, measured: MeasuredHardware | None = None) -> list[float]:
    step = evaluated(cluster, *configs, measured=measured).step
    assert step is not None
    return [float(value) for value in step.total]


def test_only_configurations_whose_traffic_exceeds_the_uplinks_are_slower() -> None:
    configs = (WHOLE, BY_NODE, COPIES, BY_LEAF, STAGES)
    without, with_leaves = seconds(CLUSTER, *configs), seconds(LEAVES, *configs)
    assert with_leaves[:3] == without[:3]
    assert all(later > earlier for earlier, later in zip(without[3:], with_leaves[3:], strict=True))


@pytest.mark.parametrize(
    "stated",
    [
        {"nodes_per_leaf": 8},
        {"nodes_per_leaf": 8, "oversubscription": 1.0},
        {"nodes_per_leaf": 64, "oversubscription": 4.0},
    ],
)
def test_leaf_switches_that_limit_nothing_change_no_prediction(stated: dict[str, float]) -> None:
    cluster = CLUSTER.model_copy(update=stated)
    configs = (WHOLE, BY_NODE, COPIES, BY_LEAF, STAGES)
    assert seconds(cluster, *configs) == seconds(CLUSTER, *configs)
    assert set(evaluated(cluster, *configs).slowness_if_scattered.tolist()) == {1.0}


def test_nodes_in_any_order_make_steps_longer_and_never_shorter() -> None:
    longer = evaluated(LEAVES, WHOLE, BY_NODE, BY_LEAF).slowness_if_scattered
    assert longer.min() >= 1.0 and longer[0] > 1.0
    assert evaluated(CLUSTER, WHOLE).slowness_if_scattered.tolist() == [1.0]


def test_measured_collectives_slow_down_by_the_uplinks_share() -> None:
    """Collectives over two nodes of one leaf were measured; those over several leaves have a part of that bandwidth."""
    ring = CollectiveTime(operation="all_reduce", bytes=1 << 30, seconds=0.1, ranks=2, nodes=2)
    measured = MeasuredHardware(
        bf16_flops=4e14, fp32_flops=5e13, copy_bytes_per_s=2e12, launch_s=6e-6, collectives=(ring,)
    )
    plain, limited = (machine(cluster, measured=measured).network for cluster in (CLUSTER, LEAVES))
    size, one, ranks, world = np.array([4e9]), np.ones(1), np.array([4.0]), np.array([256.0])
    ratios = [
        float(ring_seconds(size, one, ranks, limited.for_job(world), "all_reduce", stride)[0])
        / float(ring_seconds(size, one, ranks, plain, "all_reduce", stride)[0])
        for stride in (8.0, 16.0, 32.0, 64.0)
    ]
    assert ratios == pytest.approx([1.0, 1.0, 2.0, 4.0])


@pytest.mark.parametrize(("stated", "slower"), [({}, 4.0), ({"nodes_per_leaf": 2, "oversubscription": 4.0}, 2.0)])
def test_measured_collectives_crossed_the_leaf_switches_of_their_own_cluster(
    stated: dict[str, float], slower: float
) -> None:
    """The figures of a target said how much of the network the measurements had, although they were taken elsewhere."""
    ring = CollectiveTime(operation="all_reduce", bytes=1 << 30, seconds=0.1, ranks=16, nodes=16)
    measured = MeasuredHardware(
        bf16_flops=4e14, fp32_flops=5e13, copy_bytes_per_s=2e12, launch_s=6e-6, collectives=(ring,)
    )
    own = CLUSTER.model_copy(update={"nodes": 16} | stated)
    target = CLUSTER.model_copy(update={"nodes_per_leaf": 1, "oversubscription": 4.0})
    plain, limited = (machine(cluster, measured=measured, measured_on=own).network for cluster in (CLUSTER, target))
    size, one, ranks, world = np.array([4e9]), np.ones(1), np.array([32.0]), np.array([256.0])
    seconds_of = [
        float(ring_seconds(size, one, ranks, network.for_job(world), "all_reduce", 8.0)[0])
        for network in (plain, limited)
    ]
    assert seconds_of[1] / seconds_of[0] == pytest.approx(slower)
