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

ONE_PROJECT = ("torchtitan",)
"""Sources with several pages: their rows count as one source."""


def ratios(precision: str) -> dict[str, list[float]]:
    """Predicted over measured speed of all rows of H100, by source."""
    aliases, by_source = hardware_aliases(DATA / "hardware.csv"), defaultdict(list)
    for name in ("published.csv", "nanotron_dp.csv"):
        with (DATA / name).open(newline="") as lines:
            for line in csv.DictReader(lines):
                try:
                    case = read(line, aliases)
                except Skipped:
                    continue
                if case.crashed or "H100" not in case.gpu.name or case.row["precision"] != precision:
                    continue
                error = predict(case).speed_error
                source = next((project for project in ONE_PROJECT if project in line["source"]), line["source"])
                if error is not None:
                    by_source[source].append(1 + error)
    return by_source


def test_the_bias_that_users_read_is_that_of_the_published_rows():
    by_source, stated = ratios("bf16"), published_bias.BF16["hopper"]
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


def test_a_prediction_for_h100_says_its_bias():
    notes = predicted_table(PredictionRequest(model="llama-3.1-8b", cluster="8xh100")).notes
    assert any("112 published bf16 rows of H100 from 5 sources are predicted at 1.04 times" in note for note in notes)
    other = predicted_table(PredictionRequest(model="llama-3.1-8b", cluster="8xa100-80gb")).notes
    assert not any("published" in note for note in other)
