"""Replay studies whose true speeds are known, under recorded noise, through the search's selection and the final comparison."""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from benchmarks.verdicts.noise import Machine, Record, resampled
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study_result import Verdict as StudyVerdict
from shardtune.tuner.verdict import final_comparison, too_busy, undecided
from shardtune.tuner.verdict.comparison_blocks import ValidationRun
from shardtune.tuner.verdict.final_comparison import RankingState

ARMS, GAIN = 20, 0.05
BASELINE = 0


@dataclass(frozen=True)
class Verdict:
    """One replayed study."""

    winner: int | None
    """Winning arm; None: no significant improvement."""
    runs: int
    """Runs of its final comparison, repeats included."""
    searched: int
    """Runs of its search, repeats included."""
    is_too_busy: bool = False
    """Whether nothing was settled because of uneven pairs."""


def study(machine: Machine, gains: Sequence[float], salt: str, max_pairs: int) -> Verdict:
    """Search and final comparison over arms with these true log speeds."""
    searched = {arm: machine.run(gain) for arm, gain in enumerate(gains)}
    search_runs = machine.counted + machine.repeats
    speeds = {arm: run.speed for arm, run in searched.items()}
    disturbed = {arm for arm, run in searched.items() if run.load.is_disturbed}
    field = Finalists(BASELINE, final_comparison.finalists_among(speeds, disturbed, BASELINE))
    now = play(machine, gains, field, speeds, disturbed, salt, max_pairs)
    verdict = undecided.verdict(now.pairs, now.speedup, now.is_far_behind)
    winner = now.challenger if verdict is StudyVerdict.CONFIRMED else None
    is_too_busy = winner is None and too_busy.blocks_verdict(len(now.pairs), len(now.uneven_pairs))
    return Verdict(winner, machine.counted + machine.repeats - search_runs, search_runs, is_too_busy)


def play(
    machine: Machine,
    gains: Sequence[float],
    field: Finalists,
    speeds: Mapping[int, float],
    disturbed: Collection[int],
    salt: str,
    max_pairs: int,
) -> RankingState:
    """End of a final comparison whose runs the machine made, from the search's speeds."""
    runs: list[ValidationRun] = []
    while True:
        now = final_comparison.ranking_state(field, speeds, runs, max_pairs, salt, disturbed_searches=disturbed)
        if now.next is None:
            return now
        run = machine.run(gains[now.next.trial])
        runs.append(ValidationRun(now.next.trial, now.next.comparison_block, "worker", run.speed, load=run.load))


def replay(
    records: Sequence[Record], studies: int, gain: float, max_pairs: int, seed: int, repeat_disturbed: float = 0.0
) -> list[tuple[int, Verdict]]:
    """Studies with the arm that is faster by `gain` (drawn for each), and their verdicts."""
    draw = random.Random(seed)
    verdicts = []
    for number in range(studies):
        faster = draw.randrange(1, ARMS)
        gains = [math.log(1 + gain) if arm == faster else 0.0 for arm in range(ARMS)]
        machine = Machine(resampled(records, draw), repeat_disturbed)
        verdicts.append((faster, study(machine, gains, f"{seed}:{number}", max_pairs)))
    return verdicts


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


def report(
    records: Sequence[Record], studies: int, max_pairs: int, seed: int = 0, repeat_disturbed: float = 0.0
) -> dict[str, Any]:
    """Figures over many studies on some records."""
    alike = replay(records, studies, 0.0, max_pairs, seed, repeat_disturbed)
    planted = replay(records, studies, GAIN, max_pairs, seed + 1, repeat_disturbed)
    false = sum(verdict.winner is not None for _, verdict in alike)
    right = sum(verdict.winner == faster for faster, verdict in planted)
    wrong = sum(verdict.winner not in (None, faster) for faster, verdict in planted)
    return {
        "aa": {
            "studies": studies,
            "false_winner_rate": false / studies,
            "too_busy_rate": sum(verdict.is_too_busy for _, verdict in alike) / studies,
            "upper95": round(upper95(false, studies), 4),
            "runs_per_study": round(fmean(verdict.runs for _, verdict in alike), 1),
        },
        "planted": {
            "studies": studies,
            "gain": GAIN,
            "power": right / studies,
            "wrong_arm_rate": wrong / studies,
            "too_busy_rate": sum(verdict.is_too_busy for _, verdict in planted) / studies,
            "runs_per_study": round(fmean(verdict.runs for _, verdict in planted), 1),
            "most_runs": max(verdict.runs for _, verdict in planted),
            "all_runs_per_study": round(fmean(verdict.runs + verdict.searched for _, verdict in planted), 1),
        },
        "max_pairs": max_pairs,
        "noise": _spread(records),
    }


def disturbed(records: Sequence[Record], studies: int, max_pairs: int) -> dict[str, Any]:
    """Figures of a disturbed machine, with disturbed runs repeated as a study does, and as if each counted."""
    repeated = report(records, studies, max_pairs, repeat_disturbed=Budget().repeat_disturbed)
    counted = report(records, studies, max_pairs)["planted"]
    ratio = repeated["planted"]["all_runs_per_study"] / counted["all_runs_per_study"]
    return {**repeated, "runs_ratio": round(ratio, 2), "power_if_each_counted": counted["power"]}


def _spread(records: Sequence[Record]) -> dict[str, float | int]:
    """Spread of the recorded runs: typical deviation, and fraction of outliers."""
    every = [run.deviation for record in records for run in record]
    size = 1.4826 * median(abs(value) for value in every)
    return {
        "runs": len(every),
        "typical_deviation": round(size, 4),
        "disturbed_share": round(sum(abs(value) > 4 * size for value in every) / len(every), 3),
        "repeated_share": round(sum(run.is_disturbed for record in records for run in record) / len(every), 3),
    }
