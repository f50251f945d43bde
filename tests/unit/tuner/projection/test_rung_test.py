"""Rung test: smaller clusters foretell what the study's own cluster measured."""

import math
from dataclasses import replace

import pytest

from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.targets import StudyProjection
from shardtune.service.wording.targets import projection_words
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.projection import rung_speeds, target_rows
from shardtune.tuner.projection.rung_test import Rung, RungAnchors
from shardtune.tuner.projection.surrogates import growths
from tests.support.values.synthetic_studies import CPU
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

ONE_NODE = catalogue.parse_cluster("1x8xh100")
ON_ONE_NODE = [
    TrialConfig(strategy=Fsdp2Config(dp_shard=8), micro_batch=2, activation_checkpointing="full"),
    TrialConfig(strategy=ZeroConfig(stage=3), micro_batch=2, activation_checkpointing="full"),
]


def answer(here: tuple[float, float, float], below: tuple[float, float]) -> StudyProjection:
    """Answer of a study of two nodes after one of one node; factors on the predicted speeds of both."""
    sizes = sizes_of()
    predicted = sizes.predict(ON_ONE_NODE, ONE_NODE)
    contenders = [
        contender.model_copy(update={"tokens_per_s_per_gpu": size.predicted.tokens_per_s_per_gpu * factor})
        for contender, size, factor in zip(measured(sizes, [SHARDED, ZERO3], 1.0, 1.0), predicted, below, strict=True)
    ]
    smaller = tuple(
        contender.model_copy(update={"config": config})
        for contender, config in zip(contenders, ON_ONE_NODE, strict=True)
    )
    trials = measured(sizes, [SHARDED, HYBRID, ZERO3], *here)
    return projection_of(sizes, trials, [], smaller=[Rung(ONE_NODE, ("study-below",), smaller)])


def test_trials_that_no_gpu_can_compute_are_left_out_with_the_reason() -> None:
    sound, partly = answer((0.9, 0.9, 0.9), (0.9, 0.9)), answer((0.9, 0.9, 0.9), (0.9, 1000.0))
    assert partly.rung_test is not None and [trial.trial_number for trial in partly.rung_test.trials] == [0, 1]
    assert partly.rung_test.largest_error < 0.03 and partly.rung_test.band_factor == 1.0
    (note,) = set(partly.notes) - set(sound.notes)
    assert note.startswith("a trial on 8 GPUs (study-below) left out: ") and "the device's peak allows at most" in note
    nothing = answer((0.9, 0.9, 0.9), (1e6, 1e6))
    assert nothing.rung_test is None
    assert any(
        text.startswith("2 trials on 8 GPUs (study-below) left out") for text in projection_words.assumptions(nothing)
    )


def test_the_bound_on_speeds_is_above_every_true_one() -> None:
    sizes = sizes_of()
    limit = rung_speeds.most_tokens_per_s(sizes, ONE_NODE)
    assert limit is not None
    for size in sizes.predict(ON_ONE_NODE, ONE_NODE):
        assert 1.0 < limit / size.predicted.tokens_per_s_per_gpu < 5.0


def test_without_a_published_peak_the_measured_rates_bound_a_speed() -> None:
    sizes = sizes_of()
    assert rung_speeds.most_tokens_per_s(sizes, CPU) is None
    rates = MeasuredHardware(bf16_flops=1e11, fp32_flops=2e11, copy_bytes_per_s=1e9, launch_s=1e-5)
    limit = rung_speeds.most_tokens_per_s(replace(sizes, hardware=rates), CPU)
    # Ten times 0.2 TFLOP/s, over 3 × 13 GFLOP for each token of a 7B.
    assert limit is not None and 40 < limit < 60


def test_without_a_smaller_cluster_there_is_no_rung_test() -> None:
    sizes = sizes_of()
    projection = projection_of(sizes, measured(sizes, [SHARDED, HYBRID, ZERO3], 1.0, 1.0, 1.0), [])
    assert projection.rung_test is None and projection_words.rung_test(projection) == []


def test_each_trial_is_foretold_from_the_configuration_that_grows_to_it() -> None:
    test = answer((0.9, 0.9, 0.9), (0.9, 0.9)).rung_test
    assert test is not None and test.from_gpus == (8,) and test.studies == ("study-below",)
    # The trial of two shard groups grows from the one of a single group, as does that of one large group.
    assert [trial.trial_number for trial in test.trials] == [0, 1, 2]
    assert test.inside_band == 3 and test.band_factor == 1.0
    # The same factor on both sizes cancels; what is left is the drift of published runs.
    assert test.largest_error < 0.03


def test_a_study_that_was_foretold_badly_gets_wider_bands_and_says_so() -> None:
    good, bad = answer((1.0, 1.0, 1.0), (1.0, 1.0)), answer((0.7, 0.7, 0.7), (1.0, 1.0))
    assert good.rung_test is not None and bad.rung_test is not None
    assert bad.rung_test.inside_band == 0 and bad.rung_test.band_factor > 2
    assert bad.rung_test.median_error == pytest.approx(1 / 0.7 - 1, abs=0.05)
    assert half_width(bad.best.tokens_per_s_per_gpu) > half_width(good.best.tokens_per_s_per_gpu)
    words = projection_words.rung_test(bad)
    assert "8 GPUs foretold 3 trials of 16 GPUs" in words[0] and "times as wide" in words[1]


def test_two_foretold_trials_are_too_few_to_widen_a_band() -> None:
    sizes = sizes_of()
    trials = measured(sizes, [SHARDED], 0.7)
    below = tuple(measured(sizes, [SHARDED], 1.0))
    shown = projection_of(
        sizes, trials, [], smaller=[Rung(ONE_NODE, ("s",), (below[0].model_copy(update={"config": ON_ONE_NODE[0]}),))]
    )
    assert shown.rung_test is not None and len(shown.rung_test.trials) == 1 and shown.rung_test.band_factor == 1.0


def test_a_smaller_size_shows_that_communication_costs_more_than_predicted() -> None:
    # From one node to two, speed fell by a fifth more than predicted; on 64 nodes it falls further.
    alone, two = answer((0.8, 0.8, 0.8), (0.8, 0.8)), answer((0.8, 0.8, 0.8), (1.0, 1.0))
    assert _zero3(two) < _zero3(alone)


def test_the_study_s_own_size_is_never_displaced_by_a_smaller_one() -> None:
    # A group of 8 over two nodes stands for groups of 8, and, as another layout, for those of 16; one node has neither.
    sizes = sizes_of("64x16", cluster="2x4xh100")
    here, below = (
        TrialConfig(strategy=Fsdp2Config(dp_shard=ranks), micro_batch=2, activation_checkpointing="full")
        for ranks in (8, 4)
    )
    trials = measured(sizes, [here], 1.0)
    rung = Rung(catalogue.parse_cluster("1x4xh100"), ("s",), (trials[0].model_copy(update={"config": below}),))
    grown = target_rows.grown_configs(sizes, trials, RungAnchors(sizes, [rung]))
    rows = target_rows.project_all(sizes, grown, sizes.there)
    anchors = {row.config.strategy.dp_shard: row.projection.anchors for row in rows}  # type: ignore[union-attr]
    assert anchors == {1024: (4, 8), 16: (8,), 8: (4, 8)}


def _zero3(projection: StudyProjection) -> float:
    """Projected speed of ZeRO-3 on the target."""
    found = next(row for row in projection_words.ranked(projection) if row.trial_number == 2)
    return found.tokens_per_s_per_gpu.expected


def test_anchors_follow_the_group_that_grows() -> None:
    sizes = sizes_of()
    below = measured(sizes, [SHARDED], 1.0)[0].model_copy(update={"config": ON_ONE_NODE[0]})
    anchors = RungAnchors(sizes, [Rung(ONE_NODE, ("s",), (below,))])
    whole, *kept = growths(SHARDED, HERE, sizes.there)
    assert [anchor.predicted.gpus for anchor in anchors.of(whole)] == [8]
    assert all([anchor.predicted.gpus for anchor in anchors.of(growth)] == [8] for growth in kept)
    assert anchors.of(growths(ZERO3, HERE, sizes.there)[0]) == []
    assert math.isclose(anchors.of(whole)[0].tokens_per_s_per_gpu, below.tokens_per_s_per_gpu)
