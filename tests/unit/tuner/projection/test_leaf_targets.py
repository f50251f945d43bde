"""Targets whose leaf switches are oversubscribed: their projections, bands and notes, and what is rejected."""

import math
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.targets import StudyProjection, Target
from shardtune.service.wording.targets import projection_words
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.projection import rungs
from shardtune.tuner.projection.project import project
from shardtune.tuner.projection.sizes import MeasuredSize
from tests.support.values.target_studies import HYBRID, SHARDED, ZERO3, half_width, measured, projection_of, sizes_of

H100 = catalogue.parse_cluster("2x8xh100")
LEAVES: dict[str, float] = {"nodes_per_leaf": 8, "oversubscription": 4.0}


def answer_with(**stated: float) -> StudyProjection:
    sizes = sizes_of()
    trials = measured(sizes, [SHARDED, HYBRID, ZERO3], 1.0, 1.0, 1.0)
    return projection_of(replace(sizes, target=sizes.target.model_copy(update=stated)), trials, [])


def low_width(band: Band) -> float:
    return math.log(band.expected / band.low)


@pytest.mark.parametrize("stated", [{"nodes_per_leaf": 8}, {"nodes_per_leaf": 64, "oversubscription": 4.0}])
def test_leaf_switches_that_limit_nothing_change_no_projection(stated: dict[str, float]) -> None:
    without, there = answer_with(), answer_with(**stated)
    assert (there.best, there.runners_up, there.sizes) == (without.best, without.runners_up, without.sizes)
    assert there.strong_scaling == without.strong_scaling


def test_bands_of_several_leaves_are_wider_and_reach_down_to_nodes_in_any_order() -> None:
    usual, leaves = answer_with().best, answer_with(**LEAVES)
    (own,) = (config for config in (leaves.best, *leaves.runners_up) if config.config == usual.config)
    pairs = list(zip(usual.curve, own.curve, strict=True))
    assert {point.nodes for point, _ in pairs} >= {8, 64}
    for before, after in pairs:
        if before.nodes <= 8:
            assert after == before
        else:
            assert half_width(after.tokens_per_s_per_gpu) > half_width(before.tokens_per_s_per_gpu)
            assert low_width(after.tokens_per_s_per_gpu) > half_width(after.tokens_per_s_per_gpu)


def test_a_measured_size_over_several_leaves_leaves_the_band_as_it_is() -> None:
    sizes = replace(sizes_of(), target=sizes_of().target.model_copy(update=LEAVES))
    clusters = [sizes.there.model_copy(update={"nodes": nodes}) for nodes in (4, 16, 64)]
    configs = [
        SHARDED.model_copy(update={"strategy": SHARDED.strategy.model_copy(update={"dp_shard": each.world_size})})
        for each in clusters
    ]
    small, middle, large = (
        sizes.predict([config], each)[0].predicted for config, each in zip(configs, clusters, strict=True)
    )
    assert (small.uses_uplinks, middle.uses_uplinks) == (False, True)
    unseen = project([MeasuredSize(small, small.seconds)], large)
    seen = project([MeasuredSize(middle, middle.seconds)], large)
    assert "uplinks" in unseen.unseen and "uplinks" not in seen.unseen
    speed = seen.tokens_per_s_per_gpu
    assert speed.expected / speed.low == pytest.approx(speed.high / speed.expected)


def test_the_answer_says_what_was_stated_and_not_measured() -> None:
    notes = answer_with(**LEAVES).notes
    assert any("leaf switches of 8 nodes each, 4:1 oversubscribed: stated, not measured" in note for note in notes)
    assert not any("leaf switch" in note for note in answer_with().notes)
    assert any("limit nothing" in note for note in answer_with(nodes_per_leaf=8).notes)


def test_the_target_s_leaf_switches_replace_those_of_the_study_s_cluster() -> None:
    cluster = H100.model_copy(update={"nodes_per_leaf": 32, "oversubscription": 2.0})
    for target, expected in (
        (Target(nodes=64), (32, 2.0)),
        (Target(nodes=64, nodes_per_leaf=16), (16, None)),
        (Target(nodes=64, nodes_per_leaf=16, oversubscription=3.0), (16, 3.0)),
    ):
        there = rungs.target_cluster(cluster, target)
        assert (there.nodes_per_leaf, there.oversubscription) == expected


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"oversubscription": 2.0}, r"oversubscription \(2\) needs nodes_per_leaf, .* or leave oversubscription out"),
        ({"nodes_per_leaf": 8, "oversubscription": 0.5}, "oversubscription\n.*greater than or equal to 1"),
        ({"nodes_per_leaf": 0}, "nodes_per_leaf\n.*greater than or equal to 1"),
        ({"nodes_per_leaf": "8"}, "nodes_per_leaf\n.*valid integer"),
    ],
)
def test_wrong_leaf_switches_are_rejected(stated: dict[str, Any], words: str) -> None:
    for schema, values in ((Cluster, H100.model_dump()), (Target, {"nodes": 64})):
        with pytest.raises(ValidationError, match=words):
            schema.model_validate(values | stated)


def test_the_target_in_words_names_its_leaf_switches() -> None:
    target = Target(nodes=64, gpus_per_node=8, inter_node_gb_per_s=400.0, nodes_per_leaf=8, oversubscription=1.5)
    assert target.described == "64x8 with inter_node_gb_per_s 400, nodes_per_leaf 8, oversubscription 1.5"


def test_a_projection_over_leaf_switches_that_no_measured_size_crossed_lists_uplinks() -> None:
    projection = answer_with(**LEAVES)
    assert "uplinks" in projection.best.unseen and "uplinks" not in answer_with().best.unseen
    words = projection_words.unseen_axes([projection.best])
    assert "the uplinks of leaf switches" in words
    assert StudyProjection.model_validate_json(projection.model_dump_json()) == projection
