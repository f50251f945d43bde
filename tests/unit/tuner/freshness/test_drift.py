"""A canary notices 20 % within its period and lets a wobble pass: replays on the recorded noise of real repeats."""

import csv
import math
import random
from itertools import count
from pathlib import Path
from statistics import median

import pytest

from shardtune.tuner.freshness import drift

# Copied from benchmarks/data: the tests do not change when more is recorded.
REPEATS = Path(__file__).parent / "data" / "repeats.csv"
SLOWER, WOBBLE = 0.8, 0.02
REFERENCE_RUNS, CANARIES = 9, 30


def deviations(record):
    """Log deviations of a record's runs from the median of their configuration, in the order they ran."""
    with REPEATS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["record"] == record]
    logs: dict[str, list[float]] = {}
    for row in rows:
        logs.setdefault(row["configuration"], []).append(math.log(float(row["tokens_per_s_per_gpu"])))
    middle = {name: median(values) for name, values in logs.items()}
    return [math.log(float(row["tokens_per_s_per_gpu"])) - middle[row["configuration"]] for row in rows]


def visit(noise, draw):
    """Runs that follow each other from a random moment of the record on, so that bursts stay together."""
    begin = draw.randrange(len(noise))
    return (noise[(begin + i) % len(noise)] for i in count())


def canaries(noise, draw, speed_at, most):
    """Number of the canary that raises the alarm; None where none of so many does."""
    runs = visit(noise, draw)
    reference = drift.expected_speed([1000 * math.exp(next(runs)) for _ in range(REFERENCE_RUNS)])
    earlier = []
    for number in range(most):
        least, runs = drift.alarm_below(reference, earlier), visit(noise, draw)
        fastest = 0.0
        for _ in range(drift.MOST_RUNS):
            fastest = max(fastest, 1000 * speed_at(number) * math.exp(next(runs)))
            if fastest >= least:
                break
        if fastest < least:
            return number
        earlier.append(fastest)
    return None


def replays(record, seed, speed_at, most):
    draw = random.Random(seed)
    return [canaries(deviations(record), draw, speed_at, most) for _ in range(100)]


def test_twenty_percent_slower_is_noticed_by_the_first_canary():
    actual_replays = replays("idle", 1, lambda _: SLOWER, 1)
    assert actual_replays.count(0) >= 98


@pytest.mark.parametrize(
    "wobble",
    [lambda n: 1 + WOBBLE * math.sin(1.3 * n), lambda n: 1 + WOBBLE * (-1) ** n, lambda _: 1 - WOBBLE],
    ids=["waves", "alternates", "stays below"],
)
def test_a_wobble_of_two_percent_is_no_drift_in_a_month_of_days(wobble):
    actual_replays = replays("idle", 2, wobble, CANARIES)
    assert sum(number is not None for number in actual_replays) <= 5


def test_on_a_machine_that_is_disturbed_a_quarter_of_the_time_a_canary_is_rarely_wrong():
    actual_replays = replays("busy", 3, lambda _: 1 - WOBBLE, 1)
    assert sum(number is not None for number in actual_replays) <= 5


def test_a_slow_decline_adds_up():
    assert canaries([0.0], random.Random(0), lambda n: 0.99**n, 60) in range(8, 14)


def test_a_reference_needs_runs_and_has_a_least_spread():
    assert drift.expected_speed([1000.0, 1001.0]) is None
    reference = drift.expected_speed([1000.0, 1001.0, 999.0])
    assert reference.spread == drift.LEAST_SPREAD
    assert drift.alarm_below(reference, []) == pytest.approx(1000 * math.exp(-0.13))
    assert drift.cusum(reference, [1000.0, 1010.0]) == 0
    assert drift.relative_speed(reference, 800.0) == pytest.approx(0.8)
