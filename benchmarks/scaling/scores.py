"""Figures of projections: errors with each source counted equally, coverage of the bands, and choice of a layout."""

from collections import Counter
from collections.abc import Callable, Sequence
from csv import DictReader
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.parallel.tables import NANOTRON_COLUMNS, Measured
from benchmarks.parallel.tables import read as read_sweep
from benchmarks.predictor.columns import Misread
from benchmarks.scaling import kinds
from benchmarks.scaling.choice import Choice, choices
from benchmarks.scaling.groups import SAME, Group, published, swept
from benchmarks.scaling.pairs import LOSING, Pair, ladders, pairs
from shardtune.tuner.projection.structural import weighted_quantile

_FACTORS: dict[str, Callable[[float], bool]] = {
    "2": lambda factor: factor < 3,
    "4-8": lambda factor: 3 <= factor < 9,
    "16+": lambda factor: factor >= 9,
}
"""Tests of a target's GPUs over the anchor's, by the name of the range."""


def score(files: Sequence[Path]) -> dict[str, Any]:
    """Figures of files in the format of `published.csv` or of `nanotron_sweep.csv`.

    Raises:
        Misread: a cell or a column holds an unknown word.
        KeyError: a column is missing.
    """
    groups, tables, published_files = list[Group](), dict[str, Sequence[Measured]](), list[Path]()
    for file in files:
        columns = _columns(file)
        if columns.issuperset(NANOTRON_COLUMNS):
            read = read_sweep(file)
            tables |= {name: [*tables.get(name, ()), *rows] for name, rows in read.items()}
        elif lacking := sorted({*SAME, "n_gpus", "tokens_per_s_per_gpu", "peak_mem_gib"} - columns):
            raise Misread(f"{file}: columns ({', '.join(lacking)}) are missing; keep the header of published.csv")
        else:
            groups += published(file)
            published_files.append(file)
    groups += swept(tables.values())
    projected = pairs(groups)
    weights = Counter(pair.group.source for pair in projected)
    figures = _Figures(weights)
    losing = [pair for pair in projected if pair.group.lost > LOSING]
    return {
        **figures.of(projected),
        "losing": figures.of(losing),
        "by_factor": {
            name: figures.of([pair for pair in projected if is_inside(pair.factor)])
            for name, is_inside in _FACTORS.items()
        },
        "choice": _choice_figures(choices(tables)),
        "groups": len(groups),
        "sources": len(weights),
        "by_source": {
            source: figures.of([pair for pair in projected if pair.group.source == source]) for source in weights
        },
        "ladders": [_ladder(pair) for pair in ladders(groups)],
        "memory": _memory_figures(projected),
        "kinds": kinds.figures([pair for file in published_files for pair in kinds.pairs(file)]),
    }


def _columns(file: Path) -> set[str]:
    with file.open(newline="", encoding="utf-8") as lines:
        return set(DictReader(lines).fieldnames or ())


class _Figures:
    """Figures of pairs, each source with the same weight over all pairs."""

    def __init__(self, weights: Counter[str]) -> None:
        self._weights = weights

    def of(self, listed: Sequence[Pair]) -> dict[str, Any]:
        """Figures of some of the pairs; None where there are none."""
        return {
            "pairs": len(listed),
            **self._errors(listed, lambda pair: pair.error),
            "coverage_90": self._coverage(listed),
            "same_per_gpu": self._errors(listed, lambda pair: pair.same_per_gpu),
            "same_as_nearest": self._errors(listed, lambda pair: pair.same_as_nearest),
        }

    def _errors(self, listed: Sequence[Pair], error: Callable[[Pair], float]) -> dict[str, float | None]:
        values = [(abs(error(pair)), 1.0 / self._weights[pair.group.source]) for pair in listed]
        levels = {"median_error": 0.5, "p90_error": 0.9}
        return {
            name: round(weighted_quantile([values], level), 4) if values else None for name, level in levels.items()
        }

    def _coverage(self, listed: Sequence[Pair]) -> float | None:
        weights = [1.0 / self._weights[pair.group.source] for pair in listed]
        hits = sum(weight for weight, pair in zip(weights, listed, strict=True) if pair.covered)
        return round(hits / sum(weights), 4) if weights else None


def _choice_figures(listed: Sequence[Choice]) -> dict[str, Any]:
    def quantile(values: Sequence[float], level: float) -> float | None:
        return round(float(np.quantile(values, level)), 4) if values else None

    regrets, random = [choice.regret for choice in listed], [choice.random_regret for choice in listed]
    return {
        "tables": len(listed),
        "regret_median": quantile(regrets, 0.5),
        "regret_p90": quantile(regrets, 0.9),
        "random": {"regret_median": quantile(random, 0.5), "regret_p90": quantile(random, 0.9)},
        "by_table": {
            choice.table: {
                "layouts": choice.candidates, "regret": round(choice.regret, 4), "random": round(choice.random_regret, 4)
            }
            for choice in listed
        },
    }  # fmt: skip


def _ladder(pair: Pair) -> dict[str, Any]:
    return {
        "source": pair.group.source,
        "configuration": pair.group.name,
        "anchors": pair.projection.anchors,
        "gpus": pair.projection.gpus,
        "error": round(pair.error, 4),
        "same_per_gpu": round(pair.same_per_gpu, 4),
        "seconds_per_rank": round(pair.projection.seconds_per_rank, 6),
        "covered": pair.covered,
    }


def _memory_figures(listed: Sequence[Pair]) -> dict[str, Any]:
    errors = [abs(pair.memory_error) for pair in listed if pair.memory_error is not None]
    return {"pairs": len(errors), "median_error": round(median(errors), 4) if errors else None}
