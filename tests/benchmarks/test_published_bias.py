"""Predictions of a card are held against every published row of it, and the figure that users read is that of the rows."""

import csv
from collections import defaultdict
from statistics import median

import pytest

from benchmarks.predictor.rows import Skipped, hardware_aliases, read
from benchmarks.predictor.scores import DATA, predict
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.tuner.prediction.throughput import published_bias
from tests.support.values.prediction_tables import predicted_table

ONE_PROJECT = ("torchtitan", "fms-fsdp")
"""Sources with several pages: their rows count as one source."""


def ratios(precision: str, card: str = "H100") -> dict[str, list[float]]:
    """Predicted over measured speed of all rows of a card, by source."""
    aliases, by_source = hardware_aliases(DATA / "hardware.csv"), defaultdict(list)
    for name in ("published.csv", "nanotron_dp.csv"):
        with (DATA / name).open(newline="") as lines:
            for line in csv.DictReader(lines):
                try:
                    case = read(line, aliases)
                except Skipped:
                    continue
                if case.crashed or card not in case.gpu.name or case.row["precision"] != precision:
                    continue
                error = predict(case).speed_error
                source = next((project for project in ONE_PROJECT if project in line["source"]), line["source"])
                if error is not None:
                    by_source[source].append(1 + error)
    return by_source


@pytest.mark.parametrize("architecture", published_bias.BF16)
def test_the_bias_that_users_read_is_that_of_the_published_rows(architecture):
    by_source, stated = ratios("bf16", published_bias.CARDS[architecture]), published_bias.BF16[architecture]
    medians = sorted(median(values) for values in by_source.values())
    assert (sum(map(len, by_source.values())), len(medians)) == (stated.rows, stated.sources)
    assert (round(median(medians), 2), round(medians[0], 2), round(medians[-1], 2)) == (
        stated.ratio,
        stated.low,
        stated.high,
    )


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_three_sources_do_not_agree_that_h100_is_slower_than_predicted(precision):
    medians = [median(values) for values in ratios(precision).values()]
    assert sum(ratio > 1.05 for ratio in medians) < 3
    assert abs(median(medians) - 1) < 0.05


@pytest.mark.parametrize(
    ("cluster", "note"),
    [
        ("8xh100", "112 published bf16 rows of H100 from 5 sources are predicted at 1.04 times"),
        ("8xa100-80gb", "324 published bf16 rows of A100 from 6 sources are predicted at 1.04 times"),
    ],
)
def test_a_prediction_says_its_bias_on_the_card(cluster, note):
    notes = predicted_table(PredictionRequest(model="llama-3.1-8b", cluster=cluster)).notes
    assert any(note in line for line in notes)


def test_a_prediction_for_a_card_without_published_rows_says_none():
    other = predicted_table(PredictionRequest(model="llama-3.1-8b", cluster="8xmi300x")).notes
    assert not any("published" in note for note in other)
