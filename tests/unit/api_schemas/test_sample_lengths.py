"""Lengths of samples: what is accepted, and which samples every trial of a study trains on."""

import random
from typing import Any

import pytest
from pydantic import ValidationError

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.protocol import CannotExpress, expressed
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.padding import padding_of, timed_rows
from shardtune.api_schemas.training.sample_lengths import (
    MOST_BINS,
    MOST_ENTRIES,
    MOST_PAIRS,
    SampleLengths,
    merge_lengths,
)
from shardtune.api_schemas.training.sample_plan import PEAK_STEP, SamplePlan, Split, plan_samples
from shardtune.api_schemas.training.workload import Workload

LENGTHS = [5, 9, 9, 30, 2, 17, 11, 30]
SPLITS = [Split(1, 2, 8), Split(2, 2, 4), Split(4, 4, 1), Split(8, 1, 2), Split(16, 1, 1)]


def workload(**changes: Any) -> Workload:
    return Workload.model_validate({"sequence_length": 32, "global_batch": 16, "precision": "fp32"} | changes)


def plan(layout: str = "padded", lengths: Any = LENGTHS, global_batch: int = 16, seed: int = 0) -> SamplePlan:
    return plan_samples(SampleLengths(lengths=lengths, layout=layout), global_batch, seed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"lengths": []}, "lengths (an empty list) has no samples"),
        ({"lengths": [9, -3]}, "lengths[1] (-3) is below 2 tokens"),
        ({"lengths": [0]}, "lengths[0] (0) is below 2 tokens"),
        ({"lengths": [1]}, "no next token to learn; leave it out"),
        ({"lengths": [5_000_000_000]}, "lengths[0] (5000000000) is above 4194304 tokens"),
        ({"lengths": [1e300]}, "lengths[0] (1e+300) must be a number of tokens"),
        ({"lengths": [10**400]}, "lengths[0] (1000"),
        ({"lengths": [[9, 10**400]]}, "lengths[0] has 1000"),
        ({"lengths": [float("nan")]}, "lengths[0] (nan) must be a number of tokens"),
        ({"lengths": ["12"]}, "lengths[0] ('12') must be a number of tokens"),
        ({"lengths": [True]}, "lengths[0] (True) must be a number of tokens"),
        ({"lengths": [[5, 0]]}, "lengths[0] has 0 samples"),
        ({"lengths": [[5, 1, 1]]}, "[tokens, samples]; correct it"),
        ({"lengths": {"5": 1}}, "must be a list of lengths"),
        ({"lengths": [9] * (MOST_ENTRIES + 1)}, "count equal lengths into pairs, or give the command line a file"),
        ({"lengths": [[9, 1]] * (MOST_PAIRS + 1)}, r"lengths (16,001 entries) may have 48,000 lengths or 16,000"),
        ({"lengths": [33]}, "data.lengths (longest 33) exceeds sequence_length (32); raise sequence_length to 33"),
        ({"lengths": [31], "pad_to_multiple_of": 64}, "pads the longest sample (31) to 64 tokens"),
        ({"lengths": [9], "layout": "sorted"}, "'padded', 'grouped' or 'packed'"),
        ({"layout": "grouped"}, "Field required"),
    ],
)
def test_lengths_that_no_training_has_are_rejected_with_the_remedy(data: Any, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        workload(data=data)
    assert message in str(error.value)


def test_equal_lengths_are_counted() -> None:
    assert SampleLengths.model_validate({"lengths": LENGTHS}).lengths == (
        (2, 1),
        (5, 1),
        (9, 2),
        (11, 1),
        (17, 1),
        (30, 2),
    )
    assert SampleLengths.model_validate({"lengths": [[9, 2], 9]}).lengths == ((9, 3),)


def test_many_different_lengths_are_merged_and_keep_mean_and_longest() -> None:
    drawn = random.Random(1)
    lengths = [min(4096, 2 + int(20 * drawn.paretovariate(1.1))) for _ in range(20_000)]
    data = SampleLengths.model_validate({"lengths": lengths})
    assert len(data.lengths) <= MOST_BINS < len(set(lengths))
    assert data.samples == len(lengths) and data.longest == max(lengths)
    assert data.mean == pytest.approx(sum(lengths) / len(lengths), rel=0.005)
    # Attention's cost follows the squares.
    assert data.attended == pytest.approx(sum(n * n for n in lengths) / sum(lengths), rel=0.005)
    assert SampleLengths.model_validate(data.model_dump()) == data


def test_a_step_has_no_more_samples_than_are_planned() -> None:
    """A million of them would keep the service busy for half a minute."""
    assert workload(global_batch=1_000_000).tokens_per_step == 32_000_000
    with pytest.raises(ValidationError, match=r"global_batch \(65537\) with data may be at most 65536 samples"):
        workload(global_batch=65_537, data={"lengths": LENGTHS})


@pytest.mark.parametrize("layout", ["padded", "grouped"])
@pytest.mark.parametrize("split", SPLITS)
def test_every_division_trains_on_each_sample_once(layout: str, split: Split) -> None:
    for step in range(6):
        taken = [
            index
            for group in range(split.groups)
            for micro in range(split.accumulation)
            for index in plan(layout).samples(step, split, group, micro)
        ]
        assert sorted(taken) == list(range(16))


def test_layouts_train_on_the_same_samples_and_seeds_on_others() -> None:
    assert plan("padded").digest == plan("grouped").digest
    assert plan("padded").cycle == plan("grouped").cycle
    assert plan(seed=1).digest != plan().digest
    assert sorted(sum(plan(seed=1).cycle, ())) == sorted(sum(plan().cycle, ()))


@pytest.mark.parametrize(("global_batch", "steps"), [(2, 4), (16, 4), (32, 2), (64, 1), (1000, 1)])
def test_a_cycle_has_the_mean_length_of_the_data(global_batch: int, steps: int) -> None:
    samples = plan(global_batch=global_batch)
    assert samples.steps == steps
    mean = sum(LENGTHS) / len(LENGTHS)
    assert samples.real_tokens == pytest.approx(global_batch * mean, abs=1 / steps)


@pytest.mark.parametrize("layout", ["padded", "grouped"])
@pytest.mark.parametrize("split", SPLITS)
def test_every_micro_batch_of_the_peak_step_has_the_longest_shape(layout: str, split: Split) -> None:
    rows = plan(layout).padded_lengths(PEAK_STEP, split)
    longest = 30 if split.micro_batch > 1 else 29
    assert all(length >= longest for group in rows for length in group)
    # With padding where a micro batch can have any: masks take memory, too.
    assert set(plan(layout).lengths(PEAK_STEP)) == {29, 30}


def test_samples_of_one_length_have_no_padding() -> None:
    padding = padding_of(plan(lengths=[9, 9]), Split(4, 2, 2))
    assert (padding.padding_fraction, padding.waiting_fraction) == (0.0, 0.0)
    assert timed_rows(SampleLengths(lengths=[[9, 2]]), 16, 0, Split(4, 2, 2), meets_once=False) == (4.0, 9.0)  # type: ignore[arg-type]


def test_padding_is_what_ranks_compute_beyond_the_samples() -> None:
    samples = SamplePlan(SampleLengths(lengths=[2, 4, 8], pad_to_multiple_of=4), ((2, 4, 8, 2),))  # type: ignore[list-item]
    split = Split(1, 2, 2)
    padding = padding_of(samples, split)
    # Rank 0: 4 then 4, rank 1: 8 then 4; the first round takes as long as 8 tokens on both.
    assert (padding.real_tokens, padding.computed_tokens, padding.waited_tokens) == (16.0, 20.0, 4.0)
    assert padding.padding_fraction == pytest.approx(0.2)


def test_grouping_pads_less_and_waits_less() -> None:
    split = Split(4, 2, 8)
    padded, grouped = (padding_of(plan(layout, global_batch=64), split) for layout in ("padded", "grouped"))
    assert grouped.padding_fraction < 0.5 * padded.padding_fraction
    assert grouped.waiting_fraction < padded.waiting_fraction


def test_ranks_that_meet_once_wait_less() -> None:
    data, split = SampleLengths.model_validate({"lengths": LENGTHS}), Split(2, 4, 8)
    once, often = (timed_rows(data, 64, 0, split, meets_once=meets_once) for meets_once in (True, False))
    assert once.rows * once.length < often.rows * often.length


def test_a_workload_counts_tokens_without_padding() -> None:
    plain, ragged = workload(), workload(data={"lengths": LENGTHS})
    assert plain.tokens_per_step == 16 * 32 and plain.steps_per_cycle == 1
    assert ragged.tokens_per_step == pytest.approx(16 * sum(LENGTHS) / 8, abs=0.25)
    assert (plain.longest_row, plain.attended_length, ragged.longest_row) == (32, 32, 30)


def test_targets_without_lengths_keep_their_keys() -> None:
    cluster = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=16)
    plain, ragged = (
        TuningTarget(ModelSpec.model_validate("llama-tiny"), workload(data=data), cluster)
        for data in (None, {"lengths": LENGTHS})
    )
    assert "data" not in plain.canonical()["workload"]
    assert plain.target_key_without_fingerprint != ragged.target_key_without_fingerprint


def test_a_worker_of_the_last_protocol_gets_no_samples_of_several_lengths() -> None:
    assert "data" not in expressed(workload(), 1)
    with pytest.raises(CannotExpress, match=r"Workload\.data"):
        expressed(workload(data={"lengths": LENGTHS}), 1)


def test_a_study_says_when_its_timed_steps_lack_the_rarest_long_samples() -> None:
    tail = {"lengths": [[512, 999], [131_072, 1]]}
    training = Workload.model_validate(
        {"sequence_length": 131_072, "global_batch": 8, "precision": "bf16-mixed", "data": tail}
    )
    (note,) = training.data_notes
    assert "131,072 tokens" in note and "below the data's" in note
    # MFU counts the attention that was timed.
    assert training.attended_length < 5_000 < training.longest_row
    assert training.model_copy(update={"data": SampleLengths.model_validate({"lengths": [512, 600]})}).data_notes == ()


def test_merging_keeps_the_shortest_and_the_longest_length() -> None:
    counts = {length: 1 + length % 3 for length in range(18, 513)}
    merged = merge_lengths(counts)
    assert len(merged) <= MOST_BINS
    assert (merged[0][0], merged[-1][0]) == (18, 512)
    assert sum(count for _, count in merged) == sum(counts.values())
