"""How often does the verdict name a winner that is none, and how often does it find one that is? Replays on recorded noise.

`python -m benchmarks.verdicts --json [--record idle] [--studies 1000] [--data benchmarks/data/repeats.csv]`

Each study has 20 arms of the same speed, one of them the baseline; in the planted ones one other arm is 5 % faster. The
search sees every arm once and promotes the fastest; then the promotion of `tuner` runs as in a study, run by run, and
`tuner.verdict.ranking.result` judges. What a run measures is the true speed times recorded noise: the deviations of real repeats from
their configuration's median, drawn in blocks of runs that followed each other (circular block bootstrap, Politis & Romano
1992), so that bursts and drift stay together across the arms.
"""

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks import repeats
from benchmarks.repeats import Repeat
from shardtune.api_schemas.promotion import PromotionField
from shardtune.api_schemas.studies import FEWEST_PAIRS, Budget
from shardtune.tuner.verdict import paired_test, promotion
from shardtune.tuner.verdict.promotion import FreshRun

ARMS, GAIN = 20, 0.05
BLOCK = 10
"""Runs drawn together: about a minute of the recorded machine."""
BASELINE = 0

Noise = Iterator[float]


@dataclass(frozen=True)
class Verdict:
    """One replayed study."""

    winner: int | None
    """None: no significant improvement."""
    runs: int
    """Of its promotion."""


def deviations(rows: Sequence[Repeat]) -> list[list[float]]:
    """Log deviations of each record's runs from the median of their configuration in it, in the order they ran."""
    records: dict[str, list[Repeat]] = {}
    for row in rows:
        records.setdefault(row.record, []).append(row)
    return [_of_record(sorted(record, key=lambda row: row.position)) for record in records.values()]


def _of_record(rows: Sequence[Repeat]) -> list[float]:
    speeds: dict[str, list[float]] = {}
    for row in rows:
        speeds.setdefault(row.configuration, []).append(math.log(row.tokens_per_s_per_gpu))
    middle = {name: median(values) for name, values in speeds.items()}
    return [math.log(row.tokens_per_s_per_gpu) - middle[row.configuration] for row in rows]


def resampled(records: Sequence[Sequence[float]], draw: random.Random) -> Noise:
    """An endless run of noise in blocks; a longer record is drawn from as much more often."""
    weights = [len(record) for record in records]
    while True:
        (record,) = draw.choices(records, weights)
        begin = draw.randrange(len(record))
        yield from (record[(begin + i) % len(record)] for i in range(BLOCK))


def study(noise: Noise, gains: Sequence[float], salt: str, max_pairs: int) -> Verdict:
    """Search and promotion over arms with these true log speeds."""

    def run(arm: int) -> float:
        return math.exp(gains[arm] + next(noise))

    seen = {arm: run(arm) for arm in range(len(gains))}
    others = sorted((arm for arm in seen if arm != BASELINE), key=lambda arm: -seen[arm])
    near = [arm for arm in others[: promotion.MOST_CANDIDATES] if seen[arm] >= promotion.NEAR * seen[others[0]]]
    field = PromotionField(BASELINE, tuple(near))
    made: list[FreshRun] = []
    while (ask := (now := promotion.standing(field, seen, made, max_pairs, salt)).next) is not None:
        made.append(FreshRun(ask.trial, ask.block, "worker", run(ask.trial)))
    speedup = paired_test.speedup(now.log_ratios)
    return Verdict(now.challenger if speedup is not None and speedup.ci95[0] > 1 else None, len(made))


def replay(
    records: Sequence[Sequence[float]], studies: int, gain: float, max_pairs: int, seed: int
) -> list[tuple[int, Verdict]]:
    """Studies with the arm that is faster by `gain` (drawn for each), and their verdicts."""
    draw = random.Random(seed)
    found = []
    for number in range(studies):
        faster = draw.randrange(1, ARMS)
        gains = [math.log(1 + gain) if arm == faster else 0.0 for arm in range(ARMS)]
        found.append((faster, study(resampled(records, draw), gains, f"{seed}:{number}", max_pairs)))
    return found


def upper95(successes: int, trials: int) -> float:
    """One-sided 95 % upper bound of a rate (Clopper & Pearson 1934), by bisection of the binomial distribution."""

    def at_most(rate: float) -> float:
        logs = (
            math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
            + k * math.log(rate) + (trials - k) * math.log1p(-rate)
            for k in range(successes + 1)
        )  # fmt: skip
        return sum(map(math.exp, logs))

    if successes == trials:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(middle) > 0.05 else (low, middle)
    return high


def report(rows: Sequence[Repeat], studies: int, max_pairs: int, seed: int = 0) -> dict[str, Any]:
    """The benchmark's object."""
    records = deviations(rows)
    alike = replay(records, studies, 0.0, max_pairs, seed)
    planted = replay(records, studies, GAIN, max_pairs, seed + 1)
    false = sum(verdict.winner is not None for _, verdict in alike)
    right = sum(verdict.winner == faster for faster, verdict in planted)
    wrong = sum(verdict.winner not in (None, faster) for faster, verdict in planted)
    return {
        "aa": {
            "studies": studies,
            "false_winner_rate": false / studies,
            "upper95": round(upper95(false, studies), 4),
            "runs_per_study": round(fmean(verdict.runs for _, verdict in alike), 1),
        },
        "planted": {
            "studies": studies,
            "gain": GAIN,
            "power": right / studies,
            "wrong_arm_rate": wrong / studies,
            "runs_per_study": round(fmean(verdict.runs for _, verdict in planted), 1),
            "most_runs": max(verdict.runs for _, verdict in planted),
        },
        "max_pairs": max_pairs,
        "noise": _spread(records),
    }


def _spread(records: Sequence[Sequence[float]]) -> dict[str, float | int]:
    """What the recorded runs are like: the middle, and the share far out of it."""
    every = [value for record in records for value in record]
    size = 1.4826 * median(abs(value) for value in every)
    return {
        "runs": len(every),
        "typical_deviation": round(size, 4),
        "disturbed_share": round(sum(abs(value) > 4 * size for value in every) / len(every), 3),
    }


def main(say: Callable[[str], None] = print) -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--data", type=Path, default=repeats.DATA)
    parser.add_argument("--record", action="append", help="records to draw from (idle)")
    parser.add_argument("--max-pairs", type=int, default=Budget().max_pairs)
    options = parser.parse_args()
    records = options.record or ["idle"]
    rows = [row for row in repeats.read(options.data) if row.record in records]
    if not rows:
        parser.error(f"--record ({', '.join(records)}) is not in {options.data}")
    if options.max_pairs < FEWEST_PAIRS:
        parser.error(f"--max-pairs ({options.max_pairs}) must be at least {FEWEST_PAIRS}")
    found = report(rows, options.studies, options.max_pairs)
    say(json.dumps(found) if options.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
