"""Targets with another kind of GPU than the study's cluster."""

import math
from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import CollectiveTime, MeasuredHardware
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.targets import StudyProjection
from shardtune.service.wording.targets import projection_words
from shardtune.service.workers import target_rungs
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.projection import gpu_kinds, rungs
from shardtune.tuner.projection.structural import learnt
from tests.support.values.target_studies import (
    HERE,
    HYBRID,
    SHARDED,
    ZERO3,
    half_width,
    measured,
    projection_of,
    sizes_of,
)


def answer_of(target: str, *factors: float) -> StudyProjection:
    sizes = sizes_of(target)
    return projection_of(sizes, measured(sizes, [SHARDED, HYBRID, ZERO3], *(factors or (1.0, 1.0, 1.0))), [])


def request_of(**changes: Any) -> StudyRequest:
    study = {
        "model": "llama-2-7b",
        "workload": {"sequence_length": 4096, "global_batch": 2048, "precision": "bf16-mixed"},
        "cluster": "2x8xh100",
        "target": "64x8xh200",
    }
    return StudyRequest.model_validate(study | changes)


def test_another_kind_is_projected_from_the_catalogue_and_every_answer_says_so() -> None:
    projection = answer_of("64x8xh200")
    assert projection.measured_gpu == "H100-SXM5-80GB" and projection.cluster.gpu.startswith("H200")
    assert projection.cluster.memory_gib == catalogue.find("h200").memory_gib
    texts = " ".join(text for _, text in projection_words.rows(projection))
    assert "16 × H100-SXM5-80GB" in texts and "ratio of the speeds predicted on both" in texts
    assert "bands are wider for what was never measured: the target's kind of GPU" in texts
    for config in projection_words.ranked(projection):
        assert "gpu" in config.unseen
        assert {point.evidence for point in config.curve} == {"projected"}
    assert {row.evidence for row in projection.sizes} == {"projected"}


def test_the_speed_is_the_measured_one_times_the_ratio_of_predictions() -> None:
    sizes = sizes_of("2x8xa100-sxm4-80gb")
    projection = projection_of(sizes, measured(sizes, [ZERO3], 0.8), [])
    (here,), (there,) = (sizes.predict([ZERO3], cluster) for cluster in (sizes.cluster, sizes.there))
    expected = 0.8 * there.predicted.tokens_per_s_per_gpu
    assert projection.best.tokens_per_s_per_gpu.expected == pytest.approx(expected, rel=1e-6)
    assert expected < 0.8 * here.predicted.tokens_per_s_per_gpu
    assert projection.doublings == 0 and len(projection.best.curve) == 1
    assert not projection_words.strong_scaling(projection)


def test_the_band_holds_the_error_between_kinds_and_that_of_the_size() -> None:
    same, other = answer_of("64x8").best, answer_of("64x8xh200").best
    widths = [half_width(config.tokens_per_s_per_gpu) for config in (same, other)]
    assert widths[1] > math.hypot(widths[0], learnt().kind_width) * 0.9
    assert learnt().kind_width > 3 * learnt().width
    assert half_width(other.memory_gib) > half_width(same.memory_gib)


def test_what_does_not_fit_on_the_smaller_gpus_of_the_target_is_left_out() -> None:
    sizes = sizes_of("2x8xl40s")
    trials = measured(sizes, [SHARDED, ZERO3], 1.0, 1.0)
    large = trials[0].model_copy(update={"peak_allocated_gib": 70.0})
    projection = projection_of(sizes, [large, trials[1]], [])
    assert projection.too_large == 1 and projection.best.trial_number == 1


def test_measured_rates_of_one_kind_are_not_mixed_with_the_catalogue_of_the_other() -> None:
    sizes = sizes_of("4x8xh200")
    rates = MeasuredHardware(
        bf16_flops=1e12,
        fp32_flops=1e12,
        copy_bytes_per_s=1e11,
        launch_s=1e-4,
        collectives=(CollectiveTime(operation="all_reduce", bytes=1 << 20, seconds=1.0, nodes=2),),
    )
    with_rates = type(sizes)(sizes.shape, sizes.workload, sizes.cluster, sizes.target, sizes.objective, rates)
    assert with_rates.predict([ZERO3], sizes.cluster) == sizes.predict([ZERO3], sizes.cluster)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"target": "64x8xv100-sxm2-32gb"}, "only emulates bfloat16 (workload.precision bf16-mixed)"),
        ({"target": "1x8xh200"}, "must have at least as many nodes"),
        (
            {"target": {"nodes": 4, "gpus_per_node": 4, "gpu": "h200"}},
            "must have at least as many nodes and GPUs of a node",
        ),
    ],
)
def test_a_kind_to_which_nothing_can_be_projected_is_rejected(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError) as error:
        rungs.for_rung(request_of(**changes), HERE)
    assert expected in str(error.value)


def test_float8_needs_a_kind_that_has_it() -> None:
    request = request_of(target="64x8xa100-sxm4-80gb")
    request = request.model_copy(update={"workload": request.workload.model_copy(update={"float8": "tensorwise"})})
    with pytest.raises(ValueError, match="cannot train in float8"):
        rungs.for_rung(request, HERE)


def test_as_many_gpus_of_another_kind_are_a_target_and_the_same_kind_is_none() -> None:
    assert rungs.for_rung(request_of(target="2x8xh200"), HERE).workload.global_batch == 2048
    with pytest.raises(ValueError, match="is what the cluster has"):
        rungs.for_rung(request_of(target="2x8xh100"), HERE)


def test_a_study_on_gpus_without_rates_is_not_projected_to_another_kind() -> None:
    unknown = HERE.model_copy(update={"gpu": "GX9000"})
    with pytest.raises(ValueError, match=r"is not the cluster's kind \(GX9000\), which has no rates"):
        rungs.for_rung(request_of(cluster=unknown.model_dump()), unknown)


def test_the_network_of_the_target_is_its_own() -> None:
    here = HERE.model_copy(update={"inter_node_gb_per_s": 10.0, "nodes_per_leaf": 4, "oversubscription": 3.0})
    target = request_of().target
    assert target is not None
    there = rungs.target_cluster(here, target)
    assert there.inter_node_gb_per_s == pytest.approx(catalogue.find("h200").network_bytes_per_s * 8 / 1e9)
    assert there.nodes_per_leaf is None
    stated = target.model_copy(update={"inter_node_gb_per_s": 50.0})
    assert rungs.target_cluster(here, stated).inter_node_gb_per_s == 50.0
    assert gpu_kinds.is_other(target, here)


@pytest.mark.parametrize(
    ("driver", "kind"),
    [
        ("NVIDIA H200 NVL", "h200"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100"),
        ("NVIDIA L40", "l40s"),
    ],
)
def test_a_slice_and_a_neighbour_of_a_product_are_other_kinds_without_rates(driver: str, kind: str) -> None:
    """The catalogue's rates for them are those of the whole GPU, or of the nearest one."""
    here = HERE.model_copy(update={"gpu": driver})
    request = request_of(cluster=here.model_dump(), target=f"64x8x{kind}")
    assert request.target is not None and gpu_kinds.is_other(request.target, here)
    with pytest.raises(ValueError, match="which has no rates in the catalogue of GPUs"):
        rungs.for_rung(request, here)
    with pytest.raises(ValueError, match=r"is the nearest product in the catalogue|is not in the catalogue; use L40S"):
        rungs.for_rung(request_of(target=f"64x8x{driver.replace(' MIG', '-MIG')}"), HERE)


def test_an_unknown_gpu_is_the_same_kind_however_it_is_spelt() -> None:
    here = HERE.model_copy(update={"gpu": "NVIDIA Home-made 9000"})
    target = request_of(target="64x8xhome made 9000").target
    assert target is not None and not gpu_kinds.is_other(target, here)


V100 = catalogue.parse_cluster("2x8xv100-sxm2-16gb")


def without_precision(cluster: Any, target: str) -> StudyRequest:
    workload = {"sequence_length": 4096, "global_batch": 2048}
    return request_of(cluster=cluster.model_dump(), target=target, workload=workload)


def test_the_precision_that_is_left_open_is_that_of_the_study_s_own_devices() -> None:
    """A V100 has no bfloat16: `auto` is fp32 there, which every kind has."""
    for target in ("64x8xv100-sxm2-32gb", "64x8xt4", "64x8xh100"):
        assert rungs.for_rung(without_precision(V100, target), V100).target is not None
    with pytest.raises(
        ValueError, match=r"only emulates bfloat16 \(workload.precision auto, which is bf16-mixed here\)"
    ):
        rungs.for_rung(without_precision(HERE, "64x8xt4"), HERE)


def test_the_precision_of_a_baseline_file_counts_where_the_workload_states_none() -> None:
    file = {"compute_environment": "LOCAL_MACHINE", "mixed_precision": "fp16"}
    request = without_precision(HERE, "64x8xt4").model_copy(update={"baseline": file})
    assert target_rungs.on_rung(request, HERE).target is not None
