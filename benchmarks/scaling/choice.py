"""Choice of a layout at a large number of GPUs, from the layouts that small numbers of GPUs showed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.parallel.layout import Training
from benchmarks.parallel.tables import Measured
from benchmarks.scaling.groups import SWEEP, agreeing_rows, measured
from shardtune.tuner.projection.project import project
from shardtune.tuner.projection.sizes import MeasuredSize
from shardtune.tuner.projection.structural import learnt, owner

SHOWN = 32
"""Largest number of GPUs whose rows are shown."""


@dataclass(frozen=True)
class Choice:
    """Layout chosen for one table, and its regret: by how much the best measured layout is faster."""

    table: str
    candidates: int
    regret: float
    random_regret: float
    """Mean regret over all layouts of the table that fit."""


def choices(tables: Mapping[str, Sequence[Measured]]) -> list[Choice]:
    """Choice for each table of more GPUs than are shown, by the projected speed of each of its layouts."""
    shown: dict[Training, list[MeasuredSize]] = defaultdict(list)
    larger = []
    for name, rows in tables.items():
        agreeing = agreeing_rows(rows)
        if agreeing and agreeing[0].layout.ranks <= SHOWN:
            for row in agreeing:
                shown[row.training].append(measured(row))
        elif len(agreeing) > 1:
            larger.append((name, agreeing))
    return [_choose(name, shown[rows[0].training], rows) for name, rows in larger]


def _choose(name: str, shown: Sequence[MeasuredSize], rows: Sequence[Measured]) -> Choice:
    error = learnt(frozenset({owner(SWEEP)}))
    sizes = [measured(row) for row in rows]

    def expected(size: MeasuredSize) -> float:
        if not shown:
            return size.predicted.tokens_per_s_per_gpu
        return project(shown, size.predicted, error).tokens_per_s_per_gpu.expected

    regrets = list(_regrets(sizes))
    chosen = max(range(len(sizes)), key=lambda position: expected(sizes[position]))
    return Choice(name, len(sizes), regrets[chosen], mean(regrets))


def _regrets(sizes: Sequence[MeasuredSize]) -> Iterable[float]:
    best = max(size.tokens_per_s_per_gpu for size in sizes)
    return (best / size.tokens_per_s_per_gpu - 1.0 for size in sizes)
