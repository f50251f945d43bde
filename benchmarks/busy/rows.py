"""Rows of a study's database, read without the product's schemas: an older checkout stores other columns and words."""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

# The second word of each is f1021fe's.
_VALIDATION = ("validation", "confirm")
_RESUME_CHECK = ("resume_check", "restart")
_ROUND = ("comparison_round", "promotion_round")
_BLOCK = ("comparison_block", "block")


@dataclass(frozen=True)
class Run:
    """Run of a study that ended with a measurement."""

    trial: int
    speed: float
    """Speed in tokens per second and rank."""
    is_disturbed: bool
    block: int | None


@dataclass(frozen=True)
class Trial:
    """Trial of a study."""

    number: int
    state: str
    config: Mapping[str, Any]
    origin: str
    """Origin of the trial, such as `default`; empty where the row has none."""

    @property
    def backend(self) -> str:
        """Kind of the trial's strategy."""
        return str(self.config["strategy"]["kind"])


@dataclass(frozen=True)
class StudyRows:
    """Trials and runs of one study, as its database has them."""

    trials: tuple[Trial, ...]
    search: tuple[Run, ...]
    validation: tuple[Run, ...]
    """Measured runs of the final comparison that counts, in the order of their creation."""
    validation_rows: int
    """Number of validation runs of the study in any state and any final comparison."""
    resume_checks: int
    """Number of resume checks that ended with a measurement."""
    saves: tuple[tuple[float, int], ...]
    """Seconds and bytes of the checkpoint that each of these saved."""

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of the trial of each configuration."""
        return {config_key(trial.config): trial.number for trial in self.trials}

    def speeds(self, trial: int) -> list[float]:
        """Speeds of a trial's validation runs."""
        return [run.speed for run in self.validation if run.trial == trial]

    def pairs(self, candidate: int, baseline: int) -> list[tuple[Run, Run]]:
        """Runs of candidate and baseline in each comparison block that measured both, in the order of the blocks."""
        blocks: dict[int | None, dict[int, Run]] = defaultdict(dict)
        for run in self.validation:
            blocks[run.block][run.trial] = run
        return [(runs[candidate], runs[baseline]) for runs in blocks.values() if {candidate, baseline} <= set(runs)]

    def pair_ratios(self, candidate: int, baseline: int) -> list[float]:
        """Ratio of candidate to baseline speed in each comparison block that measured both."""
        return [first.speed / second.speed for first, second in self.pairs(candidate, baseline)]

    def fastest_search(self) -> list[int]:
        """Numbers of the complete trials, fastest by their search runs first."""
        complete = {trial.number for trial in self.trials if trial.state == "complete"}
        return [run.trial for run in sorted(self.search, key=lambda run: -run.speed) if run.trial in complete]


def config_key(config: Mapping[str, Any]) -> str:
    """Text that is equal for equal configurations of one checkout: answers state absent fields, and rows leave them out."""
    return json.dumps(_without_absent(config), sort_keys=True)


def _without_absent(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: inner for name, entry in value.items() if (inner := _without_absent(entry))}


def read_rows(database: Path, study_id: str) -> StudyRows:
    """Read the rows of a study from its SQLite file, which is not changed."""
    with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        rows = {
            name: [dict(row) for row in connection.execute(f"SELECT * FROM {name} WHERE {key} = ?", (study_id,))]
            for name, key in (("studies", "id"), ("trials", "study_id"), ("runs", "study_id"))
        }
    return rows_of(rows["studies"][0], rows["trials"], rows["runs"])


def rows_of(
    study: Mapping[str, Any], trials: Iterable[Mapping[str, Any]], runs: Iterable[Mapping[str, Any]]
) -> StudyRows:
    """Rows of a study from those of the tables `studies`, `trials` and `runs`."""
    trials, runs = sorted(trials, key=lambda row: row["number"]), sorted(runs, key=lambda row: row["position"])
    number_of = {row["id"]: int(row["number"]) for row in trials}
    current = _first(study, _ROUND)
    validation = [row for row in runs if row["purpose"] in _VALIDATION]
    return StudyRows(
        trials=tuple(
            Trial(int(row["number"]), row["state"], json.loads(row["config"]), row.get("origin") or "")
            for row in trials
        ),
        search=tuple(_measured((row for row in runs if row["purpose"] == "search"), number_of)),
        validation=tuple(_measured((row for row in validation if _first(row, _ROUND) == current), number_of)),
        validation_rows=len(validation),
        resume_checks=sum(row["purpose"] in _RESUME_CHECK and row["state"] == "complete" for row in runs),
        saves=tuple(_saves(row for row in runs if row["purpose"] in _RESUME_CHECK and row["state"] == "complete")),
    )


def _measured(rows: Iterable[Mapping[str, Any]], number_of: Mapping[int, int]) -> Iterable[Run]:
    for row in rows:
        if row["measurement"] is None or row["state"] not in ("complete", "pruned"):
            continue
        measurement = json.loads(row["measurement"])
        yield Run(
            trial=number_of[row["trial_id"]],
            speed=float(measurement["tokens_per_s_per_gpu"]),
            is_disturbed=measurement.get("disturbed") is not None,
            block=_first(row, _BLOCK),
        )


def _saves(rows: Iterable[Mapping[str, Any]]) -> Iterable[tuple[float, int]]:
    for row in rows:
        measured = json.loads(row.get("resume_check") or "null")
        if measured is not None:
            yield float(measured["save_s"]), int(measured["checkpoint_bytes"])


def _first(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((row[name] for name in names if name in row), None)


def typical_speed(rows: StudyRows, trial: int) -> float | None:
    """Median speed of a trial's validation runs, or the speed of its search run; None without either."""
    speeds = rows.speeds(trial) or [run.speed for run in rows.search if run.trial == trial]
    return median(speeds) if speeds else None
