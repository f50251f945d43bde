"""Padding of each layout of samples with several lengths, at the calculator's micro batch."""

from dataclasses import dataclass

from shardtune.api_schemas.training.padding import Padding, padding_of
from shardtune.api_schemas.training.sample_lengths import LAYOUTS, PACKED, SampleLengths, check_lengths
from shardtune.api_schemas.training.sample_plan import Split, plan_samples
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.service.pages.charts.plot import Plot
from shardtune.service.pages.charts.sample_lengths import histogram


@dataclass(frozen=True)
class LayoutCost:
    """Padding of one layout."""

    layout: str
    padding: Padding
    computed_per_own: float
    """Number of computed tokens, padding included, divided by the number of tokens that are no padding."""


@dataclass(frozen=True)
class LengthsView:
    """Chart of the samples' lengths, and the share of padding under each layout (padded, grouped, packed)."""

    samples: int
    global_batch: int
    chart: Plot | None
    layouts: tuple[LayoutCost, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    """Layouts that are impossible with the request's batch and sequence sizes, each with the reason and its remedy."""


def lengths_view(request: PredictionRequest, ranks: int) -> LengthsView | None:
    """Return the lengths of a request's samples, and the padding of each layout that its sizes allow; None if all
    samples have one length. `ranks`: number of data-parallel ranks, each of which trains on different samples."""
    data, batch, length = request.data, request.global_batch, request.sequence_length
    if data is None or batch is None or length is None:
        return None
    split = Split(request.micro_batch, ranks, max(1, batch // (ranks * request.micro_batch)))
    costs, left_out = [], []
    for layout in LAYOUTS:
        # Packed rows are padded to the sequence length, whatever the multiple.
        multiple = 1 if layout == PACKED else data.pad_to_multiple_of
        arranged = SampleLengths(lengths=data.lengths, layout=layout, pad_to_multiple_of=multiple)
        try:
            check_lengths(arranged, length, batch)
        except ValueError as error:
            left_out.append((layout, str(error)))
            continue
        padding = padding_of(plan_samples(arranged, batch, 0, length), split)
        costs.append(LayoutCost(layout, padding, padding.computed_tokens / padding.real_tokens))
    return LengthsView(data.samples, batch, histogram(data), tuple(costs), tuple(left_out))
