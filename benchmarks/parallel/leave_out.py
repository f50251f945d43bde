"""Leave one world out: the two constants that only a sweep shows, fitted on the tables of other numbers of GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from statistics import median
from typing import NamedTuple

from benchmarks.parallel import twins
from benchmarks.parallel.prediction import predict
from benchmarks.parallel.tables import Measured

_STEPS_S = (20e-6, 35e-6, 50e-6, 65e-6)
_SPANNING_S = (0.0, 0.2e-3, 0.3e-3, 0.4e-3)
_FEWEST = 8
"""Fewest rows of other worlds on which the constants are fitted; with fewer, the declared ones stand."""


class Constants(NamedTuple):
    """Constants that no specification of the hardware or the program gives."""

    inter_step_s: float
    """`Network.inter_step_s`."""
    spanning_exchange_s: float
    """`Implementation.spanning_exchange_s`."""


def with_constants(rows: Sequence[Measured], constants: Constants | None) -> list[Measured]:
    """The same rows with these constants in their training; None keeps those declared."""
    return list(rows) if constants is None else [_with(row, constants) for row in rows]


def _with(row: Measured, constants: Constants) -> Measured:
    training, program = row.training, row.training.program
    implementation = replace(program.implementation, spanning_exchange_s=constants.spanning_exchange_s)
    network = replace(training.network, inter_step_s=constants.inter_step_s)
    return replace(
        row, training=replace(training, program=replace(program, implementation=implementation), network=network)
    )


def fitted_by_world(tables: Mapping[str, Sequence[Measured]]) -> dict[int, Constants | None]:
    """For each number of GPUs the constants with the least median error on the agreeing twins of all other numbers; None
    where those are too few."""
    return _fit(tuple(tuple(rows) for rows in tables.values()))


# Sixteen predictions of a whole sweep, for which the errors of each world ask once more.
@cache
def _fit(tables: tuple[tuple[Measured, ...], ...]) -> dict[int, Constants | None]:
    agreeing: dict[int, list[Measured]] = {}
    for rows in tables:
        for pair in twins.find(rows):
            if pair.agree:
                world = rows[pair.positions[0]].layout.ranks
                agreeing.setdefault(world, []).extend(rows[position] for position in pair.positions)
    worlds = sorted({row.layout.ranks for rows in tables for row in rows})
    errors = {constants: _errors(agreeing, constants) for constants in _grid()} if len(agreeing) > 1 else {}
    return {world: _best(errors, world) for world in worlds}


def _grid() -> list[Constants]:
    return [Constants(*values) for values in product(_STEPS_S, _SPANNING_S)]


def _errors(agreeing: Mapping[int, Sequence[Measured]], constants: Constants) -> dict[int, list[float]]:
    """Absolute relative errors of each world's rows that either constant can change."""
    result: dict[int, list[float]] = {}
    for world, rows in agreeing.items():
        changed = [row for row in rows if row.layout.tp > 1 and world > row.training.network.gpus_per_node]
        predictions = predict(with_constants(changed, constants))
        result[world] = [
            abs(prediction.seconds / (row.seconds or 0.0) - 1.0)
            for prediction, row in zip(predictions, changed, strict=True)
        ]
    return result


def _best(errors: Mapping[Constants, Mapping[int, Sequence[float]]], world: int) -> Constants | None:
    def others(constants: Constants) -> list[float]:
        return [error for other, values in errors[constants].items() if other != world for error in values]

    enough = [constants for constants in errors if len(others(constants)) >= _FEWEST]
    return min(enough, key=lambda constants: median(others(constants))) if enough else None
