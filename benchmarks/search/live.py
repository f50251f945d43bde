"""Guided studies beside everything: a whole space is measured, then studies of it find their answers, then both run again.

`python -m benchmarks.search --live FOLDER --study FILE [--studies 3] [--trials 6] [--rounds 2] [--fresh 7] [--json]`
is one command; what the folder holds already is not run again. The space is measured as `--record` does. Each study is
`shardtune tune` of the same file in a state directory of its own: it knows nothing of the table, measures the machine's
rates itself, and ends with its own verdict. The table's fastest is so by luck in part, so the fastest of it and the
answers of the studies run side by side again, round by round, and are compared by those runs.
"""

import csv
import json
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.own_trials.runs import append, execute, text_of, workplace
from benchmarks.search.record import PLAN, Recording, record
from benchmarks.search.replay import GOAL
from benchmarks.search.table import Table, config_of, read
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.tuner.search.space import Space
from shardtune.workers.agent.attempt import Workplace

_COLUMNS = ("config", "round", "step_time_s")
_FASTEST = 6
"""Number of the table's fastest that run again beside the answers."""
_RESAMPLES = 10_000
_EVERY_CONFIGURATION = 100_000


@dataclass(frozen=True)
class Comparison:
    """Plan of a comparison: subjects and repeats."""

    recording: Recording
    studies: int
    trials: int
    """Trials of each study."""
    fresh: int
    """Runs of each finalist."""


def compare(comparison: Comparison) -> dict[str, Any]:
    """Measure what the folder does not hold yet, and everything `--json` prints.

    Raises:
        InputError: no study file, one without CPU ranks, or a space that is not measured whole.
        PlatformFailure: a study ended without an answer.
    """
    folder = comparison.recording.folder
    record(replace(comparison.recording, configurations=_EVERY_CONFIGURATION))
    table = read(folder)
    _check_whole(table, folder)
    answers = [_answer(comparison, number) for number in range(1, comparison.studies + 1)]
    configs = [TrialConfig.model_validate(answer["best"]["config"]) for answer in answers]
    ranked = sorted(table.seconds, key=table.seconds.__getitem__)
    measured = {table.space.key(config): config for config in table.space.measured}
    finalists = {key: measured[key] for key in ranked[:_FASTEST]}
    finalists |= {table.space.key(config): config for config in configs}
    runs = _fresh(comparison, table, finalists)
    return {
        "table": table.name,
        "configurations": len(table.space.measured),
        "validation_runs": comparison.fresh,
        "fastest": [_row(table, ranked, measured[key], runs) for key in ranked[:_FASTEST]],
        "studies": [
            _row(table, ranked, config, runs) | {"verdict": answer["verdict"], "trials": answer["trials"]}
            for config, answer in zip(configs, answers, strict=True)
        ],
    }


def lines(result: dict[str, Any]) -> list[str]:
    """Report as text."""
    text_lines = [
        f"{result['table']}: all {result['configurations']} configurations measured; {result['validation_runs']} runs of each below"
    ]
    for title in ("fastest", "studies"):
        for number, row in enumerate(result[title], start=1):
            low, high = row["fresh_interval_95"]
            place = (
                "not in the space"
                if row["place"] is None
                else f"place {row['place']} of the table, {row['share']:.3f} of its best"
            )
            text_lines.append(
                f"{title} {number}: {row['config']}: {place}; run again {row['fresh_share']:.3f} [{low:.3f}, {high:.3f}] "
                f"of the fastest of these{'' if row['holds'] else ', NOT within 3 %'}"
            )
    return text_lines


def _check_whole(table: Table, folder: Path) -> None:
    size, there = Space(table.space.domains, table.space.limits).size(_EVERY_CONFIGURATION), len(table.space.measured)
    if there < size:
        raise InputError(
            f"--live ({folder}) holds {there} of the {size} configurations of its space; run it again with "
            "more --minutes, or limit space in study.json"
        )


def _answer(comparison: Comparison, number: int) -> dict[str, Any]:
    """Answer of one study, which is run where no answer is stored."""
    path = comparison.recording.folder / f"study-{number}.json"
    if not path.exists():
        with tempfile.TemporaryDirectory() as work:
            command = [
                "tune",
                str(comparison.recording.folder / "study.json"),
                "--max-trials",
                str(comparison.trials),
                "--json",
            ]
            places = ["--state-dir", f"{work}/state", "--out", f"{work}/best"]
            done = subprocess.run(
                [str(Path(sys.executable).with_name("shardtune")), *command, *places], capture_output=True, text=True
            )
        if done.returncode != 0:
            raise PlatformFailure(f"study {number} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        path.write_text(done.stdout)
    answer: dict[str, Any] = json.loads(path.read_text())
    return answer


def _fresh(comparison: Comparison, table: Table, finalists: dict[str, TrialConfig]) -> dict[str, list[float]]:
    """Step times of each finalist, run for run; round by round in an order of its own."""
    path = comparison.recording.folder / "fresh.csv"
    read_fresh = _read_fresh(path, table)
    remaining = [
        (number, key)
        for number in range(1, comparison.fresh + 1)
        for key in random.Random(number).sample(sorted(finalists), len(finalists))
        if number not in read_fresh[key]
    ]
    if remaining:
        with tempfile.TemporaryDirectory() as work, workplace(Path(work), table.cluster.gpus_per_node) as place:
            for index, (number, key) in enumerate(remaining):
                seconds = read_fresh[key][number] = _seconds(place, table, finalists[key], index)
                row = {"config": text_of(finalists[key]), "round": str(number), "step_time_s": f"{seconds:.5f}"}
                append(path, _COLUMNS, row)
    return {key: [read_fresh[key][number] for number in range(1, comparison.fresh + 1)] for key in finalists}


def _read_fresh(path: Path, table: Table) -> dict[str, dict[int, float]]:
    """Step times by configuration and round."""
    actual_defaultdict: dict[str, dict[int, float]] = defaultdict(dict)
    if path.exists():
        with path.open(newline="") as rows:
            for row in csv.DictReader(rows):
                actual_defaultdict[table.space.key(config_of(row["config"], str(path)))][int(row["round"])] = float(
                    row["step_time_s"]
                )
    return actual_defaultdict


def _seconds(place: Workplace, table: Table, config: TrialConfig, number: int) -> float:
    task = TrialTask(model=table.spec.model, workload=table.workload, cluster=table.cluster, config=config, plan=PLAN)
    result = execute(place, task, number)
    if not isinstance(result, Measurement):
        raise PlatformFailure(f"{config.describe()} failed when it ran again: {result}")
    return result.step_time_s


def _row(table: Table, ranked: list[str], config: TrialConfig, runs: dict[str, list[float]]) -> dict[str, Any]:
    """A configuration by the table, and by its validation runs against those of whichever finalist was then fastest.

    The interval is of the ratio of medians: rounds are drawn again, so that what a round has in common stays in it.
    """
    key = table.space.key(config)
    fastest = min(runs, key=lambda completed: median(runs[completed]))
    best, own = np.array(runs[fastest]), np.array(runs[key])
    drawn = np.random.default_rng(0).integers(len(own), size=(_RESAMPLES, len(own)))
    ratios = np.median(best[drawn], axis=1) / np.median(own[drawn], axis=1)
    share, (low, high) = float(np.median(best) / np.median(own)), np.quantile(ratios, (0.025, 0.975)).tolist()
    return {
        "config": text_of(config),
        "place": ranked.index(key) + 1 if key in table.seconds else None,
        "share": round(table.share(key), 4),
        "fresh_share": round(share, 4),
        "fresh_interval_95": [round(low, 4), round(high, 4)],
        "holds": share >= GOAL or high >= 1.0,
    }
