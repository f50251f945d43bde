"""A study with a target: the rung on which its trials run, and targets that are rejected."""

from typing import Any

import pytest
from pydantic import ValidationError

from shardtune.api_schemas.machines.hardware import Cluster, CollectiveTime, MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_changes import CloneRequest
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.projection import rungs

CPU = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=16)
H100 = catalogue.parse_cluster("2x8xh100")
RATES = MeasuredHardware(bf16_flops=4e14, fp32_flops=5e13, copy_bytes_per_s=2e12, launch_s=6e-6)


def request(target: Any, global_batch: int = 512, **changes: Any) -> StudyRequest:
    """Study of a small model with a target."""
    workload = {"sequence_length": 64, "global_batch": global_batch}
    return StudyRequest.model_validate({"model": "llama-tiny", "workload": workload, "target": target} | changes)


def test_each_rank_of_the_cluster_does_the_work_of_one_rank_of_the_target() -> None:
    study = rungs.for_rung(request("8x8"), CPU)
    assert study.workload.global_batch == 16
    assert study.target is not None and study.target.global_batch == 512
    assert study.workload.global_batch / 2 == study.target.global_batch / 64


def test_a_stored_study_that_is_created_again_keeps_its_target_and_batch() -> None:
    stored = rungs.for_rung(request("8x8"), CPU)
    assert rungs.for_rung(stored, CPU) == stored
    larger = rungs.for_rung(stored, CPU.model_copy(update={"gpus_per_node": 4}))
    assert larger.workload.global_batch == 32


@pytest.mark.parametrize(
    ("changes", "batches"),
    [
        ({"target": "16x8"}, (8, 512)),
        ({"target": {"nodes": 16, "gpus_per_node": 8, "global_batch": 1024}}, (16, 1024)),
        ({"seed": 3}, (16, 512)),
        # A batch that equals the stored part is repeated with another field of the workload: the target's stays.
        ({"workload": {"sequence_length": 32, "global_batch": 16}}, (16, 512)),
        ({"workload": {"sequence_length": 32, "global_batch": 16}, "target": "16x8"}, (8, 512)),
        ({"workload": {"sequence_length": 64, "global_batch": 1024}}, (32, 1024)),
        ({"workload": {"sequence_length": 64, "global_batch": 1024}, "target": "16x8"}, (16, 1024)),
    ],
)
def test_a_clone_keeps_the_batch_of_the_target_until_another_is_given(
    changes: dict[str, Any], batches: tuple[int, int]
) -> None:
    stored = rungs.for_rung(request("8x8"), CPU)
    clone = rungs.for_rung(CloneRequest.model_validate(changes).applied_to(stored), CPU)
    assert clone.target is not None
    assert (clone.workload.global_batch, clone.target.global_batch) == batches


def test_a_study_without_a_target_stays_as_it_is() -> None:
    plain = request(None)
    assert rungs.for_rung(plain, CPU) is plain


@pytest.mark.parametrize(
    ("text", "nodes", "gpus", "kind"), [("64", 64, None, None), ("64x8", 64, 8, None), ("64x8xh100", 64, 8, "h100")]
)
def test_a_target_may_be_written_in_short(text: str, nodes: int, gpus: int | None, kind: str | None) -> None:
    target = request(text).target
    assert target is not None and (target.nodes, target.gpus_per_node, target.gpu) == (nodes, gpus, kind)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("many", "must read NODES"),
        ("8xh100", "write 1x8xh100"),
        ("0x8", "at least one node"),
        ("1000000x10", "at most 100000 GPUs; name fewer nodes"),
        ({"nodes": 50_000, "gpus_per_node": 8}, "at most 100000 GPUs; name fewer nodes"),
        ({"nodes": 10**7}, "less than or equal to 100000"),
    ],
)
def test_a_target_that_no_cluster_could_be_is_rejected_as_it_is_read(target: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        request(target)


@pytest.mark.parametrize(
    ("cluster", "target", "changes", "words"),
    [
        (CPU, "1x2", {}, r"target \(1 × 2 GPUs\) is what the cluster has"),
        (H100, "1x8", {}, "at least as many nodes and GPUs of a node as the cluster's 2 × 8"),
        (H100, "64x4", {}, "at least as many nodes and GPUs of a node as the cluster's 2 × 8"),
        (CPU, "64x8xh200", {}, r"target.gpu \('h200'\) is not the cluster's kind \(cpu\).*run the study on GPUs"),
        (H100, "50000", {}, "at most 100000 GPUs"),
        (CPU, "3x8", {}, r"workload.global_batch \(512\) must be a multiple of 24, .*try 504 or 528"),
        (CPU, {"nodes": 8, "inter_node_gb_per_s": 3}, {}, "is of no use for CPU ranks"),
        (
            H100,
            "64x8",
            {"space": {"knobs": {"tensor_parallel": [8, 16]}}},
            r"tensor_parallel \(16\) is more than the 8",
        ),
        (
            H100,
            "64x8",
            {"baseline": {"kind": "fsdp2", "dp_shard": 1, "tensor_parallel": 16}},
            "16.* is more than the 8",
        ),
        (H100, "64x8", {"space": {"knobs": {"tensor_parallel": 16}}}, "use at most 8, or a target with larger nodes"),
    ],
)
def test_a_target_that_the_cluster_says_nothing_about_is_rejected_with_a_remedy(
    cluster: Cluster, target: Any, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        rungs.for_rung(request(target, **changes), cluster)


def test_a_gpu_without_known_rates_needs_measured_ones_and_the_networks_bandwidth() -> None:
    unknown = H100.model_copy(update={"gpu": "Homemade 9000", "nodes": 1})
    with pytest.raises(ValueError, match=r"Homemade 9000.*lacks"):
        rungs.for_rung(request("8x8"), unknown)
    with pytest.raises(ValueError, match=r"target.inter_node_gb_per_s \(null\) is needed for 8 nodes"):
        rungs.for_rung(request("8x8"), unknown, RATES)
    stated = {"nodes": 8, "gpus_per_node": 8, "inter_node_gb_per_s": 50}
    assert rungs.for_rung(request(stated), unknown, RATES).workload.global_batch == 64
    # A worker that comes later may bring its rates.
    assert rungs.for_rung(request("8x8"), unknown, has_worker=False).workload.global_batch == 64


def test_ranks_that_share_samples_may_have_a_batch_smaller_than_the_ranks() -> None:
    knobs = {"space": {"knobs": {"tensor_parallel": [1, 8]}}}
    with pytest.raises(ValueError, match="multiple of 512"):
        rungs.for_rung(request("64x8", global_batch=64), H100)
    assert rungs.for_rung(request("64x8", global_batch=64, **knobs), H100).workload.global_batch == 2


BASELINE = {"strategy": {"kind": "fsdp2", "dp_shard": 2, "tensor_parallel": 8}}


@pytest.mark.parametrize("baseline", [BASELINE, BASELINE["strategy"], TrialConfig.model_validate(BASELINE)])
def test_a_baseline_whose_ranks_share_samples_may_have_a_batch_smaller_than_the_ranks(baseline: Any) -> None:
    study = rungs.for_rung(request("64x8", global_batch=64, baseline=baseline), H100)
    assert study.workload.global_batch == 2


def test_measured_collectives_keep_the_size_of_their_group_on_the_target() -> None:
    target = request("64x8").target
    assert target is not None
    within = CollectiveTime(operation="all_reduce", bytes=1 << 26, seconds=1e-3)
    across = CollectiveTime(operation="all_reduce", bytes=1 << 26, seconds=1e-2, nodes=2)
    measured = RATES.model_copy(update={"collectives": (within, across)})
    kept = rungs.target_rates(measured, H100, target)
    assert kept is not None and [time.ranks for time in kept.collectives] == [8, 16]
    other_network = target.model_copy(update={"inter_node_gb_per_s": 100.0})
    replaced = rungs.target_rates(measured, H100, other_network)
    assert replaced is not None and [time.nodes for time in replaced.collectives] == [1]
