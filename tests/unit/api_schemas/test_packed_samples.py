"""Packed samples: which rows every trial of a study trains on, and what is rejected."""

import random
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from shardtune.api_schemas.protocol import CannotExpress, expressed
from shardtune.api_schemas.strategies import TrialConfig, ragged_support
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.padding import padding_of, timed_rows
from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.api_schemas.training.sample_packing import models as packed_models
from shardtune.api_schemas.training.sample_packing.rows import pack
from shardtune.api_schemas.training.sample_plan import PEAK_STEP, PackedPlan, Split
from shardtune.api_schemas.training.workload import Workload

LENGTHS = [5, 9, 9, 30, 2, 17, 11, 30]


def workload(**changes: Any) -> Workload:
    data = {"lengths": LENGTHS, "layout": "packed"} | changes.pop("data", {})
    sizes = {"sequence_length": 64, "global_batch": 8, "precision": "fp32", "data": data}
    return Workload.model_validate(sizes | changes)


def plan(**changes: Any) -> PackedPlan:
    packed = workload(**changes).sample_plan
    assert isinstance(packed, PackedPlan)
    return packed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_length": 29}, "data.lengths (longest 30) exceeds sequence_length (29)"),
        ({"data": {"pad_to_multiple_of": 8}}, "pad_to_multiple_of (8) with layout ('packed')"),
        ({"global_batch": 60_000}, "packs about 271,858 samples into a step"),
        ({"global_batch": 70_000}, "at most 65536 rows, whose samples are planned"),
    ],
)
def test_rows_that_cannot_be_packed_are_rejected_with_the_remedy(changes: Any, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        workload(**changes)
    assert message in str(error.value)


def test_samples_are_packed_by_best_fit_decreasing() -> None:
    assert pack([3, 7, 5, 4, 1], 10) == [(7, 3), (5, 4, 1)]
    assert pack([10, 10], 10) == [(10,), (10,)]
    # The row with the least space that fits, not the first one.
    assert pack([6, 7, 3, 2], 10) == [(7, 3), (6, 2)]


def test_no_row_overflows_and_no_sample_is_lost_or_cut() -> None:
    drawn = random.Random(2)
    lengths = [min(64, 2 + int(5 * drawn.paretovariate(1.1))) for _ in range(3000)]
    rows = pack(lengths, 64)
    assert max(map(sum, rows)) <= 64
    assert Counter(length for row in rows for length in row) == Counter(lengths)
    assert len(rows) <= 1.02 * sum(lengths) / 64 + 1


@pytest.mark.parametrize("global_batch", [1, 3, 8, 64, 1000])
def test_each_step_has_as_many_rows_as_the_global_batch(global_batch: int) -> None:
    packed = plan(global_batch=global_batch)
    for step in range(packed.steps + 2):
        rows = packed.rows(step)
        assert len(rows) == global_batch and all(row and sum(row) <= 64 for row in rows)
        assert list(packed.lengths(step)) == [length for row in rows for length in row]


def test_packed_samples_have_the_lengths_of_the_data() -> None:
    packed = plan(global_batch=256)
    assert packed.attended == pytest.approx(packed.data.attended, rel=0.05)
    assert packed.real_tokens > 0.95 * 256 * 64


def test_a_seed_and_a_width_decide_the_rows() -> None:
    assert plan().digest == plan().digest
    assert len({plan().digest, plan(seed=1).digest, plan(sequence_length=65).digest}) == 3


@pytest.mark.parametrize("split", [Split(1, 2, 4), Split(2, 2, 2), Split(8, 1, 1)])
def test_every_division_trains_on_each_row_once(split: Split) -> None:
    taken = [
        index
        for group in range(split.groups)
        for micro in range(split.accumulation)
        for index in plan().samples(0, split, group, micro)
    ]
    assert sorted(taken) == list(range(8))


def test_the_space_that_rows_leave_is_told_as_padding() -> None:
    packed = plan()
    padding = padding_of(packed, Split(2, 2, 2))
    assert padding.computed_tokens == 8 * 64 and padding.waited_tokens == 0
    assert padding.real_tokens == sum(map(sum, packed.cycle)) / packed.steps
    grouped = workload(data={"layout": "grouped"}).sample_plan
    assert grouped is not None and padding.padding_fraction < padding_of(grouped, Split(2, 2, 2)).padding_fraction


def test_the_peak_step_has_the_mask_of_several_samples_in_every_row() -> None:
    assert all(len(row) > 1 or sum(row) < 64 for row in plan().rows(PEAK_STEP))
    # One full sample a row needs no mask in any step.
    assert set(plan(data={"lengths": [64]}).rows(PEAK_STEP)) == {(64,)}


def test_attention_costs_the_squares_of_samples_only_where_the_kernel_skips_the_others() -> None:
    data, split = SampleLengths.model_validate({"lengths": [16], "layout": "packed"}), Split(2, 2, 2)
    rows = {
        name: timed_rows(data, 8, 0, split, meets_once=False, sequence_length=64, attention=name)
        for name in ("sdpa", "eager", "flash_attention_2")
    }
    assert {name: timed.rows * timed.length for name, timed in rows.items()} == dict.fromkeys(rows, 2 * 64)
    assert rows["flash_attention_2"].length == 16 and rows["eager"].length == 64
    # All scores of the row, where a causal kernel computes half.
    assert rows["sdpa"].length == 128


def test_model_parallel_axes_are_rejected_with_packed_samples() -> None:
    config = TrialConfig.model_validate(
        {"strategy": {"kind": "ddp"}, "micro_batch": 1, "context_parallel": 2, "activation_checkpointing": "none"}
    )
    with pytest.raises(
        ValueError, match=r"context_parallel \(2\) divides rows among ranks, whose mask knows no bounds"
    ):
        ragged_support.check(config, workload().data)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("gpt_oss", "lets samples of a row attend to each other"),
        ("mamba", "carries a state from each sample of a row to the next"),
        ("mpt", "was not tested for samples"),
    ],
)
def test_architectures_that_leak_or_are_unknown_are_rejected(model_type: str, reason: str) -> None:
    model = ModelSpec.model_validate({"model_type": model_type})
    with pytest.raises(
        ValueError, match=rf"data.layout \('packed'\) with model_type \('{model_type}'\), which {reason}"
    ):
        packed_models.check(workload().data, model)
    packed_models.check(workload(data={"layout": "grouped"}).data, model)


def test_a_worker_of_the_last_protocol_gets_no_packed_samples() -> None:
    with pytest.raises(CannotExpress, match=r"Workload\.data"):
        expressed(workload(), 1)


def test_rows_that_lack_short_samples_are_named():
    drawn = random.Random(1)
    counts = Counter(min(2048, max(8, int(drawn.lognormvariate(5, 1)))) for _ in range(3000))
    data = {"lengths": sorted(counts.items())}
    notes = {rows: workload(sequence_length=2048, global_batch=rows, data=data).data_notes for rows in (1, 64)}
    assert notes[64] == ()
    assert (
        "4 timed rows lack short samples: theirs have 292 tokens in the mean, 26% more than the data's (232)"
        in notes[1][0]
    )
