"""Rows of an answer: named cells, of which some are figures with unit, basis and band; and rows as flat records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.service.mcp.schemas.figures import Basis, Figure
from shardtune.tuner.search.space.flat import flatten


class DayFigure(NamedTuple):
    """Date with its earliest and latest possible date, as a counterpart of `Figure` for dates."""

    value: date
    low: date | None
    high: date | None
    unit: str
    basis: Basis
    band: str | None
    source: str


Cell = Figure | DayFigure | str | int | float | bool | None
"""Value of a table cell: a figure (a value with its unit and range), or a value that was neither measured nor
predicted, such as a name."""


@dataclass(frozen=True)
class AnswerRow:
    """AnswerRow of a table."""

    cells: Mapping[str, Cell]
    """Cells by the names of their columns, in the order of the columns."""
    config: TrialConfig | None = None
    """Configuration that the row describes. Its knobs appear in `record`, but not in the row's HTML."""

    def record(self) -> dict[str, Any]:
        """Return the row as a flat dictionary. A figure takes a key for its value, and further keys that end with
        `_low`, `_high`, `_unit` and `_basis`. Knobs have keys that begin with `config.`."""
        flat: dict[str, Any] = {}
        for name, cell in self.cells.items():
            if isinstance(cell, Figure | DayFigure):
                flat |= {name: cell.value, f"{name}_low": cell.low, f"{name}_high": cell.high}
                flat |= {f"{name}_unit": cell.unit, f"{name}_basis": cell.basis}
            else:
                flat[name] = cell
        if self.config is not None:
            flat |= {f"config.{name}": value for name, value in flatten(self.config).items()}
        return flat


@dataclass(frozen=True)
class RowTable:
    """Table of an answer: rows, with a name and a caption."""

    name: str
    """Name for `records` and `to_pandas`."""
    caption: str
    rows: Sequence[AnswerRow]
    remark: str = ""
    """Sentence below the rows."""

    def columns(self) -> list[str]:
        """Return the names of the columns that have a value in at least one row."""
        names = dict.fromkeys(name for row in self.rows for name in row.cells)
        return [name for name in names if any(row.cells.get(name) is not None for row in self.rows)]


def cells(**values: Cell) -> dict[str, Cell]:
    """Return cells by name."""
    return values
