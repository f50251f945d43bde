"""Rate at which the slower of two documented defaults is recommended, where the faster one's search run was disturbed

`python -m benchmarks.baseline --json [--studies 500]`

Each study has two defaults, one of them 5 % faster, and six other trials as fast as the slower default; none has a baseline of
the user's. Runs have the noise of the recorded idle machine, but the faster default's only search run is as slow as one of the disturbed
record, unseen by the rule that repeats such runs. `then` is the final comparison as it was: the default that was fastest in the
search is the baseline, and is recommended unless a candidate is confirmed to be faster.
"""

import argparse
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks import repeats
from benchmarks.verdicts import noise
from benchmarks.verdicts.noise import Machine, Record, resampled
from benchmarks.verdicts.replay import GAIN, play
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.tuner.verdict import final_comparison, ranking

SLOWER, FASTER = 0, 1
TRIALS = 8
SLOWED = -0.2
"""Log deviation from which on a run of the disturbed record counts as one that was slowed down."""


def recommended(machine: Machine, slowed: float, salt: str, *, defaults_run_again: bool) -> tuple[int, int]:
    """Recommended arm of one study, and the number of its validation runs."""
    gains = [math.log1p(GAIN) if arm == FASTER else 0.0 for arm in range(TRIALS)]
    searched = {arm: machine.run(gain) for arm, gain in enumerate(gains)}
    speeds = {arm: run.speed * math.exp(slowed if arm == FASTER else 0.0) for arm, run in searched.items()}
    disturbed = {arm for arm, run in searched.items() if run.load.is_disturbed}
    baseline = max((SLOWER, FASTER), key=lambda arm: speeds[arm])
    field = Finalists(
        baseline, final_comparison.finalists_among(speeds, disturbed, baseline), defaults=(SLOWER, FASTER)
    )
    if not defaults_run_again:
        field = replace(field, defaults=())
    before = machine.counted
    now = play(machine, gains, field, speeds, disturbed, salt, Budget().max_pairs)
    is_challenger = now.challenger is not None and ranking.recommends_challenger(field, now)
    served = now.challenger if is_challenger and now.challenger is not None else now.baseline
    return served, machine.counted - before


def replay(idle: list[Record], slowed: list[float], studies: int, *, defaults_run_again: bool) -> dict[str, Any]:
    """Shares of many studies."""
    draw = random.Random(0)
    ends = []
    for number in range(studies):
        machine = Machine(resampled(idle, draw), Budget().repeat_disturbed)
        ends.append(recommended(machine, draw.choice(slowed), f"{number}", defaults_run_again=defaults_run_again))
    return {
        "slower_default_served": sum(end == SLOWER for end, _ in ends) / studies,
        "faster_default_served": sum(end == FASTER for end, _ in ends) / studies,
        "validation_runs": round(fmean(runs for _, runs in ends), 1),
    }


def report(studies: int) -> dict[str, Any]:
    """The benchmark's object."""
    rows = repeats.read()
    idle: list[Record] = [*noise.of_records([row for row in rows if row.record == "idle"])]
    busy = noise.of_records([row for row in rows if row.record == "busy"])
    slowed = [run.deviation for record in busy for run in record if run.deviation < SLOWED]
    return {
        "studies": studies,
        "gain": GAIN,
        "slowed_runs_drawn_from": len(slowed),
        "now": replay(idle, slowed, studies, defaults_run_again=True),
        "then": replay(idle, slowed, studies, defaults_run_again=False),
    }


def main(say: Callable[[str], None] = print) -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--studies", type=int, default=500)
    options = parser.parse_args()
    figures = report(options.studies)
    say(json.dumps(figures) if options.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
