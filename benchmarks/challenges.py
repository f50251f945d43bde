"""Cost of a challenge when nothing changed, its error rate, and the power that an early end costs

`python -m benchmarks.challenges --json [--studies 1000] [--sigma 0.027] [--record idle]`

Each challenge has the incumbent and three challengers; one of them is faster than the incumbent by the gain, or as fast.
All run once, the fastest is paired with the incumbent, and `tuner.verdict.challenge` decides, run by run. Noise is that of
benchmarks.verdicts (recorded repeats, drawn in blocks), or Gaussian of a given size. `patient` is the same test without
the rule that gives up: the difference in power is what the rule costs.
"""

import argparse
import itertools
import json
import math
import random
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

from benchmarks import repeats
from benchmarks.verdicts.noise import Draw, Noise, of_records, resampled
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.tuner.verdict import challenge, final_comparison, paired_test
from shardtune.tuner.verdict.comparison_blocks import ValidationRun

CHALLENGERS = 3
GAINS = (0.0, 0.02, 0.05, 0.1)
BEHIND = -0.02
"""Speed of the other challengers, as a fraction of the incumbent's."""


def run_challenge(noise: Noise, gain: float, salt: str, gives_up: bool) -> tuple[str, int]:
    """Finding and runs of one challenge."""
    truth = [0.0, math.log1p(gain), *[math.log1p(BEHIND)] * (CHALLENGERS - 1)]

    def run(arm: int) -> float:
        return math.exp(truth[arm] + next(noise).deviation)

    speeds = [run(arm) for arm in range(len(truth))]
    rival = max(range(1, len(speeds)), key=lambda arm: speeds[arm])
    first = math.log(speeds[rival] / speeds[0])
    rule = partial(challenge.decide, first_log_ratio=first) if gives_up else paired_test.decide
    field, searched, validation_runs = Finalists(0, (rival,)), dict(enumerate(speeds)), list[ValidationRun]()
    while (
        ask := (
            now := final_comparison.ranking_state(
                field, searched, validation_runs, challenge.MAX_PAIRS, salt, rule, may_end_early=False
            )
        ).next
    ) is not None:
        validation_runs.append(ValidationRun(ask.trial, ask.comparison_block, "worker", run(ask.trial)))
    finding = challenge.outcome(now.log_ratios, challenge.MAX_PAIRS, first)
    return finding if finding != "faster" or rival == 1 else "wrong arm", len(speeds) + len(validation_runs)


def replay(noise: Callable[[random.Random], Noise], studies: int, gain: float, gives_up: bool) -> dict[str, Any]:
    """Shares of the findings and runs of many challenges."""
    draw = random.Random(f"{gain}")
    ends = [run_challenge(noise(draw), gain, f"{gain}:{number}", gives_up) for number in range(studies)]
    shares = {name: sum(end == name for end, _ in ends) / studies for name in ("kept", "faster", "inconclusive")}
    return shares | {"runs": round(fmean(runs for _, runs in ends), 1), "most_runs": max(runs for _, runs in ends)}


def report(noise: Callable[[random.Random], Noise], studies: int) -> dict[str, Any]:
    """The benchmark's object, by gain."""
    return {
        f"{gain:g}": {
            "challenge": replay(noise, studies, gain, True),
            "patient": replay(noise, studies, gain, False),
        }
        for gain in GAINS
    }


def main(say: Callable[[str], None] = print) -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--record", help="noise of this record of benchmarks/data/repeats.csv")
    parser.add_argument("--sigma", type=float, default=0.02, help="Gaussian noise between runs, without --record")
    options = parser.parse_args()

    def noise(draw: random.Random) -> Noise:
        if options.record is None:
            return (Draw(draw.gauss(0, options.sigma)) for _ in itertools.count())
        return resampled(records, draw)

    records = of_records([row for row in repeats.read() if row.record == options.record])
    if options.record is not None and not records:
        parser.error(f"--record ({options.record}) is not in {repeats.DATA}")
    figures = report(noise, options.studies)
    say(json.dumps(figures) if options.json else "\n".join(f"{gain}: {value}" for gain, value in figures.items()))


if __name__ == "__main__":
    main()
