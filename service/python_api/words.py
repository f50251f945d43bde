"""Words for columns, figures and bands, which text and HTML of an answer share."""

from datetime import date

from shardtune.service.mcp.schemas.figures import Figure
from shardtune.service.python_api.rows import Cell, DayFigure, RowTable

_UNITS = {"gib": "GiB", "s": "s"}
_UPPER = {"mfu": "MFU", "gpu": "GPU", "gpus": "GPUs", "gpu hours": "GPU-hours"}


def heading(name: str) -> str:
    """Return a column's heading: `capacity (GiB)` for the column `capacity_gib`."""
    stem, _, last = name.rpartition("_")
    if stem and last in _UNITS:
        return f"{heading(stem)} ({_UNITS[last]})"
    words = name.replace("_", " ")
    return _UPPER.get(words, words)


def plain(cell: Cell) -> str:
    """Return the text of a table cell whose value is not a figure (a number with unit and range)."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.4g}" if isinstance(cell, float) else "" if cell is None else str(cell)


def value(figure: Figure | DayFigure) -> str:
    """Return a figure's value with its unit, such as `10,170 tokens/s/GPU`."""
    return f"{_amount(figure.value)} {figure.unit}".rstrip()


def band(figure: Figure | DayFigure) -> str:
    """Return the range of a figure, such as `7,321 to 14,140`; empty if the figure has no range."""
    return "" if figure.low is None or figure.high is None else f"{_amount(figure.low)} to {_amount(figure.high)}"


def _amount(amount: float | date) -> str:
    """Format a date or a number. Numbers of at least 100 have no decimals; smaller ones have up to four digits."""
    if isinstance(amount, date):
        return amount.isoformat()
    return f"{amount:,.0f}" if abs(amount) >= 100 else f"{amount:,.4g}"


def bands(table: RowTable) -> list[str]:
    """Return one sentence for each kind of range in a table, which says what the range means and which columns have
    it."""
    columns: dict[str, dict[str, None]] = {}
    for row in table.rows:
        for name, cell in row.cells.items():
            if isinstance(cell, Figure | DayFigure) and cell.band is not None and cell.low is not None:
                columns.setdefault(cell.band, {})[heading(name)] = None
    return [f"Range of {', '.join(sorted(names))}: {kind}." for kind, names in columns.items()]
