"""Projection of a configuration from the sizes on which it was measured to a larger one."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from shardtune.tuner.prediction import catalogue
from shardtune.tuner.prediction.candidates import FSDP2, FULL, Dtypes, Implementation
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import network_of, rates_of
from shardtune.tuner.projection.project import Projection, project
from shardtune.tuner.projection.published_errors import PUBLISHED_ERRORS
from shardtune.tuner.projection.sizes import MeasuredSize, PredictedSize, predict_sizes
from shardtune.tuner.projection.structural import StructuralError, learn, learnt, owner

SHAPE = ModelShape("llama", 32, 4096, 32, 32, 128, 11008, 32000)
NO_DRIFT = StructuralError(drift=0.0, width=0.02)


def sizes(*counts: int, shard: int | None = None, micro_batch: int = 1) -> list[PredictedSize]:
    """Predictions of FSDP2 on these numbers of GPUs, eight a node."""
    gpu = catalogue.find("A100-80GB")
    rows: list[dict[str, float]] = [
        {
            "backend": FSDP2, "shard": shard or count, "regather": shard or count, "replicate": count / (shard or count),
            "sequence": 4096, "micro_batch": micro_batch, "checkpointing": FULL,
        }
        for count in counts
    ]  # fmt: skip
    return predict_sizes(SHAPE, rows, Dtypes(), Implementation(), rates_of(gpu), network_of(gpu, 8))


def measured(predicted: Sequence[PredictedSize], *factors: float) -> list[MeasuredSize]:
    """Sizes that took so many times as long as predicted."""
    return [MeasuredSize(size, size.seconds * factor) for size, factor in zip(predicted, factors, strict=True)]


def test_one_anchor_carries_its_distance_from_the_prediction_to_the_target() -> None:
    small, large = sizes(8, 64)
    projection = project(measured([small], 1.25), large, NO_DRIFT)
    assert projection.tokens_per_s_per_gpu.expected == pytest.approx(large.tokens_per_s_per_gpu / 1.25, rel=1e-3)
    assert projection.verdict == "projected" and projection.anchors == (8,) and projection.doublings == 3


def test_each_doubling_costs_what_published_runs_lost() -> None:
    small, large = sizes(16, 64)
    without, drifting = (
        project(measured([small], 1.0), large, replace(NO_DRIFT, drift=drift)) for drift in (0.0, 0.01)
    )
    ratio = without.tokens_per_s_per_gpu.expected / drifting.tokens_per_s_per_gpu.expected
    assert math.log(ratio) == pytest.approx(0.02, rel=0.01)


def test_a_second_anchor_moves_the_trend_by_less_than_its_own_error() -> None:
    small, middle, large = sizes(16, 32, 128)
    alike = project(measured([small, middle], 1.0, 1.0), large, NO_DRIFT).tokens_per_s_per_gpu.expected
    slower = project(measured([small, middle], 1.0, 1.04), large, NO_DRIFT).tokens_per_s_per_gpu.expected
    assert 0.01 < math.log(alike / slower) < 0.08


def test_the_band_is_linear_in_doublings_and_wider_where_an_axis_was_never_seen() -> None:
    inside, first, second, third = sizes(8, 16, 32, 64)

    def half_width(anchor: PredictedSize, target: PredictedSize) -> float:
        projection = project(measured([anchor], 1.0), target, NO_DRIFT)
        speed = projection.tokens_per_s_per_gpu
        assert speed.low < speed.expected < speed.high
        return math.log(speed.high / speed.expected) - projection.open_width

    assert half_width(first, third) - half_width(first, second) == pytest.approx(NO_DRIFT.width)
    across = project(measured([inside], 1.0), first, NO_DRIFT)
    assert across.unseen == ("nodes",) and half_width(inside, first) > half_width(first, second)
    (other,) = sizes(32, micro_batch=2)
    assert project(measured([first], 1.0), other, NO_DRIFT).unseen == ("layout",)


def test_a_widened_band_is_wider_by_its_factor_in_every_part() -> None:
    small, large = sizes(1, 64)
    wide, usual = (project(measured([small], 1.0), large, replace(NO_DRIFT, widening=factor)) for factor in (3.0, 1.0))
    assert usual.open_width > 0.01
    half_widths = [
        math.log(each.tokens_per_s_per_gpu.high / each.tokens_per_s_per_gpu.expected) for each in (wide, usual)
    ]
    assert half_widths[0] == pytest.approx(3.0 * half_widths[1])


def test_communication_that_was_never_measured_widens_the_band() -> None:
    one, two, four = sizes(1, 2, 4)
    unmeasured, seen = (project(measured([anchor], 1.0), four, NO_DRIFT) for anchor in (one, two))
    assert unmeasured.unseen == ("communication",) and seen.unseen == ()

    def half_width(projection: Projection) -> float:
        return math.log(projection.tokens_per_s_per_gpu.high / projection.tokens_per_s_per_gpu.expected)

    one_doubling = NO_DRIFT.width
    apart = half_width(unmeasured) - unmeasured.open_width - (half_width(seen) - seen.open_width)
    assert apart == pytest.approx(2 * one_doubling)


def test_ranks_that_only_split_the_model_show_no_exchange_of_gradients() -> None:
    gpu = catalogue.find("A100-80GB")
    row = {"backend": FSDP2, "sequence": 4096, "tensor": 8, "checkpointing": FULL, "replicate": 1}
    split, copies = predict_sizes(
        SHAPE, [row | {"shard": 1, "regather": 1}, row | {"shard": 4, "regather": 4}], Dtypes(), Implementation(),
        rates_of(gpu), network_of(gpu, 8),
    )  # fmt: skip
    assert (split.gpus, copies.gpus) == (8, 32)
    assert project(measured([split], 1.0), copies, NO_DRIFT).unseen == ("nodes", "communication")


def test_time_that_grows_with_each_rank_is_found_from_three_sizes_over_nodes() -> None:
    predicted = sizes(8, 16, 32, 64, 128, 1024)
    slowed = [MeasuredSize(size, size.seconds + 0.003 * size.gpus) for size in predicted]
    projection = project(slowed[:-1], predicted[-1])
    assert projection.seconds_per_rank == pytest.approx(0.003, rel=0.05)
    assert projection.tokens_per_s_per_gpu.expected == pytest.approx(slowed[-1].tokens_per_s_per_gpu, rel=0.02)
    assert project(slowed[:3], predicted[-1]).seconds_per_rank == 0.0
    steady = measured(predicted[:-1], 1.0, 1.0, 1.01, 1.0, 1.01)
    assert project(steady, predicted[-1]).seconds_per_rank == 0.0


def test_memory_keeps_what_was_measured_beyond_its_prediction() -> None:
    small, large = sizes(8, 64)
    anchor = MeasuredSize(small, small.seconds, small.memory_gib + 2.0)
    assert large.memory_gib < small.memory_gib
    assert project([anchor], large).memory_gib.expected == pytest.approx(large.memory_gib + 2.0)
    unmeasured, stated = project(measured([small], 1.0), large).memory_gib, project([anchor], large).memory_gib
    assert unmeasured.high / unmeasured.expected > stated.high / stated.expected


def test_a_shard_group_within_a_node_is_another_configuration_than_one_over_all_gpus() -> None:
    (hybrid,), (whole,), (inside,) = sizes(32, shard=8), sizes(32), sizes(8)
    assert not hybrid.has_layout_of(whole)
    assert inside.has_layout_of(hybrid) and inside.has_layout_of(whole)


def test_a_single_group_over_nodes_stands_for_several_of_its_size() -> None:
    (single,), (several,), (whole,), (larger,) = sizes(16, shard=16), sizes(64, shard=16), sizes(64), sizes(32)
    assert single.has_layout_of(several) and several.has_layout_of(single)
    assert single.has_layout_of(whole)
    assert not larger.has_layout_of(several)
    near = project(measured([single], 1.3), several)
    assert near.anchors == (16,) and near.unseen == ()


def test_a_target_below_every_measured_size_is_refused_with_a_remedy() -> None:
    small, large = sizes(8, 64)
    with pytest.raises(
        ValueError, match=r"gpus \(8\) must be at least as many as were measured \(64\); measure a smaller"
    ):
        project(measured([large], 1.0), small)
    with pytest.raises(ValueError, match="measurements"):
        project([], small)


def test_the_structural_error_is_learnt_without_the_owner_that_is_scored() -> None:
    assert owner("mosaicml/llm-foundry@HEAD:README.md") == owner("mosaicml/examples@9fa3ceb9a~1") == "mosaicml"
    assert learnt().sources == len(PUBLISHED_ERRORS)
    assert learnt(frozenset({"mosaicml"})).sources == len(PUBLISHED_ERRORS) - 2
    assert learnt().drift > 0 and learnt().width > 0


def test_sources_count_equally_however_many_runs_they_have() -> None:
    many, few = [(1.0, 0, 0.01, 0.0)] * 50, [(1.0, 0, 0.03, 0.0)]
    assert learn({"many": many, "few": few}).drift == pytest.approx(0.02)
    wide = learn({"few": [(1.0, 0, 0.5, 0.0)], "many": many, "other": many})
    assert wide.width > 0.2
