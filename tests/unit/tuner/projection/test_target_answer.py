"""Answer of a study for its target."""

from dataclasses import replace
from itertools import pairwise

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.api_schemas.studies.targets import StudyProjection
from shardtune.service.wording.targets import projection_words
from tests.support.values.target_studies import HYBRID, SHARDED, ZERO3, half_width, measured, projection_of, sizes_of

TOO_LARGE = TrialConfig(strategy=DdpConfig(), micro_batch=2)


def answer_of(target: str = "64x8", *factors: float) -> StudyProjection:
    sizes = sizes_of(target)
    configs = [SHARDED, HYBRID, ZERO3]
    return projection_of(sizes, measured(sizes, configs, *(factors or (1.0, 1.0, 1.0))), [TOO_LARGE])


def test_the_answer_is_projected_and_names_the_target_and_what_each_rank_does() -> None:
    projection = answer_of()
    assert projection.verdict == "projected"
    assert (projection.cluster.nodes, projection.cluster.gpus_per_node) == (64, 8)
    assert projection.global_batch == 2048 and projection.measured_gpus == 16 and projection.doublings == 5
    for config in projection_words.ranked(projection):
        config.config.strategy.check_ranks(512)
        band = config.tokens_per_s_per_gpu
        assert band.low < band.expected < band.high


@pytest.mark.parametrize("factors", [(1.0, 1.0, 1.0), (0.8, 1.1, 0.9)])
def test_bands_widen_with_the_number_of_gpus(factors: tuple[float, ...]) -> None:
    for config in projection_words.ranked(answer_of("64x8", *factors)):
        widths = [half_width(point.tokens_per_s_per_gpu) for point in config.curve]
        assert widths[0] == 0.0 and config.curve[0].evidence == "measured"
        assert all(later > earlier for earlier, later in pairwise(widths))


def test_chances_of_all_projected_configurations_add_up_to_one_at_most() -> None:
    projection = answer_of()
    chances = [config.chance_of_best for config in projection_words.ranked(projection)]
    assert 0.0 < sum(chances) <= 1.001 and projection.projected >= len(chances)


def test_a_single_configuration_has_no_chance_to_be_the_fastest() -> None:
    sizes = sizes_of()
    projection = projection_of(sizes, measured(sizes, [ZERO3], 1.0), [])
    assert projection.projected == 1
    assert not any("chance" in text for _, text in projection_words.rows(projection))


def test_a_trial_that_grows_in_several_ways_shows_the_chance_of_all_of_them() -> None:
    sizes = sizes_of("64x8")
    projection = projection_of(sizes, measured(sizes, [SHARDED], 1.0), [])
    configs = projection_words.ranked(projection)
    assert projection.projected == len(configs) > 1
    assert {config.chance_of_trial for config in configs} == {1.0}
    assert all("in all its forms" in projection_words.describe(projection, config) for config in configs[:1])
    assert projection_words.chance_of_trial(configs[0]) == "99 % in all its forms"


def test_a_trial_that_is_far_slower_here_is_not_the_best_there() -> None:
    projection = answer_of("64x8", 0.3, 1.0, 0.3)
    assert projection.best.trial_number == 1 and projection.best.chance_of_best > 0.95
    assert not projection.order_changes


def test_the_order_changes_where_the_larger_group_costs_more_than_it_gained() -> None:
    sizes = sizes_of()
    trials = measured(sizes, [ZERO3, HYBRID], 1.0, 1.0)
    # On two nodes ZeRO-3 is made a little faster; over 64 nodes its gathers grow, the hybrid's stay within a node.
    trials[0] = trials[0].model_copy(update={"tokens_per_s_per_gpu": 1.001 * trials[1].tokens_per_s_per_gpu})
    projection = projection_of(sizes, trials, [])
    assert projection.order_changes and projection.best.trial_number == 1 and projection.best.rank_measured == 2
    assert projection.sizes[0].trial_number == 0 and projection.sizes[-1].trial_number == 1
    assert projection_words.take_overs(projection.sizes)


def test_the_sizes_between_hold_what_a_job_may_get_with_the_same_work_for_each_rank() -> None:
    projection = answer_of("8x8")
    assert [row.nodes for row in projection.sizes] == [2, 3, 4, 5, 6, 7, 8]
    assert [row.evidence for row in projection.sizes] == ["measured", *["projected"] * 6]
    assert [row.global_batch / row.gpus for row in projection.sizes] == [32] * 7
    for row in projection.sizes:
        row.config.strategy.check_ranks(row.gpus)


def test_every_number_of_nodes_up_to_sixteen_is_projected_and_few_beyond() -> None:
    assert [cluster.nodes for cluster in sizes_of().between()] == [*range(3, 17), 24, 32, 48, 64]


def test_configurations_that_fit_on_the_target_alone_are_counted_and_not_ranked() -> None:
    here = "1x2xh100"
    sizes = sizes_of("8x8", cluster=here)
    small = TrialConfig(strategy=Fsdp2Config(dp_shard=2), activation_checkpointing="full")
    too_large_here = TrialConfig(strategy=Fsdp2Config(dp_shard=2), micro_batch=2)
    assert not sizes.predict([too_large_here], sizes.cluster)[0].fits
    smallest = measured(sizes, [small], 1.0)
    projection = projection_of(sizes, smallest, [too_large_here, TOO_LARGE])
    assert projection.only_at_target == 1
    assert "1 configuration fits only at the target; it was not measured" in projection_words.left_out(projection)


def test_what_ran_out_of_memory_and_needs_as_much_on_the_target_does_not_fit_only_there() -> None:
    sizes = sizes_of("8x8")
    copies = TrialConfig(strategy=Fsdp2Config(dp_shard=8, dp_replicate=2), activation_checkpointing="full")
    assert sizes.predict([copies], sizes.cluster)[0].fits
    projection = projection_of(sizes, measured(sizes, [SHARDED], 1.0), [copies])
    assert projection.only_at_target == 0


def test_the_fastest_trial_is_named_although_its_groups_do_not_divide_the_targets_ranks() -> None:
    sizes = sizes_of("3x12", global_batch=36 * 64)
    trials = measured(sizes, [HYBRID, SHARDED, ZERO3], 2.0, 1.0, 0.5)
    projection = projection_of(sizes, trials, [])
    assert projection.without_layout == (0,) and projection.order_changes
    assert projection.best.trial_number != 0 and projection.best.rank_measured > 1
    assert projection.sizes[0].trial_number == 0
    texts = [text for _, text in projection_words.rows(projection)]
    assert "1 measured configuration cannot be laid out on the target's ranks (trial 0 was the fastest here)" in texts
    assert not any("the same trial" in text for text in texts)


def test_a_network_that_nobody_measured_widens_the_band_and_is_said() -> None:
    sizes = sizes_of("8x8", cluster="1x8xh100")
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=8), micro_batch=2, activation_checkpointing="full")
    projection = projection_of(sizes, measured(sizes, [config], 1.0), [])
    assert "nodes" in projection.best.unseen
    assert any("was not measured" in note and "by the catalogue" in note for note in projection.notes)


def test_one_gpu_shows_no_communication_and_is_named_in_the_singular() -> None:
    sizes = sizes_of("1x8", model="llama-3.2-1b", cluster="1x1xh100")
    projection = projection_of(sizes, measured(sizes, [TrialConfig(strategy=DdpConfig())], 1.0), [])
    assert projection.best.unseen == ("communication",)
    texts = [text for _, text in projection_words.rows(projection)]
    assert "bands are wider for what was never measured: the exchange of gradients" in texts
    assert "the same trial is the fastest on the measured 1 GPU" in texts
    assert any(text.startswith("tokens/s/GPU by size: 1 GPU ") for text in texts)


def test_strong_scaling_keeps_the_targets_batch_on_every_size() -> None:
    projection = answer_of()
    points = projection.strong_scaling
    assert [point.gpus for point in points] == [16, 32, 64, 128, 256, 512]
    assert {point.evidence for point in points} == {"projected"}
    # On the target itself, both ways of scaling are the same step.
    there, best_there = points[-1].tokens_per_s_per_gpu, projection.best.tokens_per_s_per_gpu
    assert (there.low, there.expected, there.high) == pytest.approx(
        (best_there.low, best_there.expected, best_there.high)
    )
    # More accumulation on fewer GPUs spreads what happens once a step: no slower than what was measured with less.
    best = projection.best
    assert points[0].tokens_per_s_per_gpu.expected > 0.999 * best.measured_tokens_per_s_per_gpu
    assert points[0].tokens_per_s_per_gpu.low < points[0].tokens_per_s_per_gpu.expected
    (text,) = projection_words.strong_scaling(projection)
    assert text.startswith("tokens/s/GPU with 2048 samples a step on every size: 16 GPUs ")
    assert text in {row for _, row in projection_words.rows(projection)}
    assert projection_words.strong_scaling(projection.model_copy(update={"strong_scaling": ()})) == []


def test_strong_scaling_leaves_out_sizes_on_which_accumulated_gradients_do_not_fit() -> None:
    sizes = sizes_of("64x8", cluster="2x8xl4", global_batch=1024)
    config = SHARDED.model_copy(update={"strategy": Fsdp2Config(dp_shard=16, grad_sync="last")})
    projection = projection_of(sizes, measured(sizes, [config], 1.0), [])
    assert len(projection.best.curve) > 10, "without accumulation, the trial fits on every size"
    assert [point.gpus for point in projection.strong_scaling] == [512]
    assert projection_words.strong_scaling(projection) == []


def test_the_answer_says_where_the_curve_bends_and_what_limits_the_target() -> None:
    usual = answer_of()
    assert usual.best.bends_at_gpus is None and usual.best.bound_by == "compute"
    assert projection_words.limits(usual)[0].startswith("no size up to the target loses")
    # A network of 1 GB/s a node carries far less than the GPUs compute.
    sizes = sizes_of()
    slow_target = sizes.target.model_copy(update={"inter_node_gb_per_s": 1.0})
    slow = projection_of(replace(sizes, target=slow_target), measured(sizes, [SHARDED, ZERO3], 1.0, 1.0), [])
    best = slow.best
    lost = [
        each for each in best.curve if each.tokens_per_s_per_gpu.expected < 0.9 * best.measured_tokens_per_s_per_gpu
    ]
    assert best.bound_by == "network" and best.bends_at_gpus == lost[0].gpus
    there, here = best.exposed_communication_fraction, best.study_exposed_communication_fraction
    assert there is not None and here is not None and there > 0.5 > here
    bend, limit = projection_words.limits(slow)
    assert bend.startswith(f"the curve bends at {lost[0].gpus} GPUs: ")
    assert limit.startswith("predicted to be limited by network at the target") and limit.endswith("of one on 16 GPUs")
    assert {bend, limit} <= {text for _, text in projection_words.rows(slow)}
    older = usual.model_copy(update={"best": usual.best.model_copy(update={"bound_by": None})})
    assert projection_words.limits(older) == []


def test_without_any_configuration_for_the_target_the_answer_says_why() -> None:
    with pytest.raises(ValueError, match="none of 0 measured configurations can run on 64"):
        projection_of(sizes_of(), [], [])


def test_the_best_and_its_figures_are_in_words() -> None:
    texts = [text for _, text in projection_words.rows(answer_of())]
    assert texts[0].startswith("64 nodes of 8 × ") and "projected and not measured" in texts[0]
    assert texts[1].startswith("1. ") and "chance to be the fastest" in texts[1]
    assert any(text.startswith("predicted, not measured: ") for text in texts)
    assert not any("confirmed" in text for text in texts)


def test_one_sample_and_one_rank_are_singular() -> None:
    sizes = sizes_of("2x1", model="gpt2", cluster="1x1xh100", global_batch=2)
    projection = projection_of(sizes, measured(sizes, [TrialConfig(strategy=DdpConfig())], 1.0), [])
    assert projection.notes[0] == "the same work for each rank: 1 sample a step on 1 rank, 2 on 2"
    assert projection_words.size(projection).startswith("2 nodes of 1 × ")
