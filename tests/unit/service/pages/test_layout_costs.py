"""The calculator's picture of samples' lengths, and the padding of each layout."""

from typing import Any

import pytest

from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.service.pages.charts.sample_lengths import histogram
from shardtune.service.pages.views.new_study.layout_costs import LengthsView, lengths_view

SPREAD = [[64, 300], [512, 40], [4096, 1]]


def view(lengths: Any, **changes: Any) -> LengthsView:
    sizes = {"sequence_length": 4096, "global_batch": 64, "micro_batch": 4}
    request = PredictionRequest(model="llama-tiny", cluster="8xh100", data={"lengths": lengths}, **sizes | changes)
    shown = lengths_view(request, ranks=8)
    assert shown is not None
    return shown


def test_sorting_and_packing_save_padding() -> None:
    padded, grouped, packed = view(SPREAD).layouts
    assert [one.layout for one in (padded, grouped, packed)] == ["padded", "grouped", "packed"]
    assert padded.padding.padding_fraction > grouped.padding.padding_fraction > packed.padding.padding_fraction
    assert padded.computed_per_own == pytest.approx(1 / (1 - padded.padding.padding_fraction))


def test_a_layout_that_the_sizes_do_not_allow_is_left_out() -> None:
    """More samples in a step's packed rows than are planned."""
    shown = view([[2, 10], [40, 1]], sequence_length=4096, global_batch=1024)
    assert [one.layout for one in shown.layouts] == ["padded", "grouped"]
    ((layout, reason),) = shown.left_out
    assert layout == "packed" and reason.startswith("global_batch (1024) packs about") and "use at most" in reason
    assert view(SPREAD).left_out == ()


def test_a_multiple_of_padding_counts_where_rows_are_padded_to_the_longest() -> None:
    lengths = {"lengths": [[60, 10], [500, 1]], "pad_to_multiple_of": 64}
    request = PredictionRequest(
        model="llama-tiny", cluster="8xh100", sequence_length=512, global_batch=64, micro_batch=4, data=lengths
    )
    shown = lengths_view(request, ranks=8)
    assert shown is not None
    for layout in shown.layouts[:2]:
        assert layout.padding.computed_tokens % 64 == 0
    plain = view([[60, 10], [500, 1]], sequence_length=512)
    assert shown.layouts[0].computed_per_own > plain.layouts[0].computed_per_own
    assert shown.layouts[2] == plain.layouts[2]


def test_samples_of_one_length_have_no_picture() -> None:
    assert view([7]).chart is None
    assert lengths_view(PredictionRequest(model="llama-tiny", cluster="8xh100"), ranks=8) is None


def test_the_bars_hold_all_tokens_and_the_note_their_middle() -> None:
    chart = histogram(SampleLengths(lengths=SPREAD))
    assert chart is not None and "512 tokens or more" in chart.note
    tokens = {64: 64 * 300, 512: 512 * 40, 4096: 4096}
    heights = [area.height for area in chart.areas]
    assert len(heights) == len(tokens)
    for height, part in zip(heights, tokens.values(), strict=True):
        assert height / sum(heights) == pytest.approx(part / sum(tokens.values()), abs=0.01)


def test_a_rare_long_sample_has_a_bar_that_can_be_seen() -> None:
    """It decides memory; its part of the tokens would be less than a tenth of a unit."""
    chart = histogram(SampleLengths(lengths=[[64, 10**9], [4096, 1]]))
    assert chart is not None and chart.x_label == "tokens of a sample (log scale)"
    assert [area.height >= 1 for area in chart.areas] == [True, True]
    linear = histogram(SampleLengths(lengths=[[60, 1], [64, 1]]))
    assert linear is not None and linear.x_label == "tokens of a sample"


@pytest.mark.parametrize("lengths", [[[2, 1], [4_194_304, 1]], [2, 3], [[4095, 1], [4096, 10**12]]])
def test_every_bar_lies_within_the_chart(lengths: Any) -> None:
    chart = histogram(SampleLengths(lengths=lengths))
    assert chart is not None
    assert all(chart.left <= area.x <= area.x + area.width <= chart.width - chart.right + 0.2 for area in chart.areas)
    assert all(area.y >= chart.top and area.height >= 0 for area in chart.areas)
