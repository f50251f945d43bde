"""Words for columns, figures and bands, which text and HTML of an answer share."""

from datetime import date

from shardtune.service.mcp.schemas.figures import Figure
from shardtune.service.python_api.rows import Cell, DayFigure, RowTable

_UNITS = {"gib": "GiB", "s": "s"}
_UPPER = {"mfu": "MFU", "gpu": "GPU", "gpus": "GPUs", "gpu hours": "GPU-hours"}


def heading(name: str) -> str:
    """Return a column's name for people: `capacity_gib` is `capacity (GiB)`."""
    stem, _, last = name.rpartition("_")
    if stem and last in _UNITS:
        return f"{heading(stem)} ({_UNITS[last]})"
    words = name.replace("_", " ")
    return _UPPER.get(words, words)


def plain(cell: Cell) -> str:
    """Return a cell that is no figure as text."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.4g}" if isinstance(cell, float) else "" if cell is None else str(cell)


def value(figure: Figure | DayFigure) -> str:
    """Return a figure's value with its unit: `10,170 tokens/s/GPU`."""
    return f"{_amount(figure.value)} {figure.unit}".rstrip()


def band(figure: Figure | DayFigure) -> str:
    """Return a figure's band: `7,321 to 14,140`; empty without one."""
    return "" if figure.low is None or figure.high is None else f"{_amount(figure.low)} to {_amount(figure.high)}"


def _amount(amount: float | date) -> str:
    """Format a number, whole from 100 and else with up to four digits; or a day."""
    if isinstance(amount, date):
        return amount.isoformat()
    return f"{amount:,.0f}" if abs(amount) >= 100 else f"{amount:,.4g}"


def bands(table: RowTable) -> list[str]:
    """Return a sentence for each kind of band in a table, with the columns that have it."""
    columns: dict[str, dict[str, None]] = {}
    for row in table.rows:
        for name, cell in row.cells.items():
            if isinstance(cell, Figure | DayFigure) and cell.band is not None and cell.low is not None:
                columns.setdefault(cell.band, {})[heading(name)] = None
    return [f"Range of {', '.join(sorted(names))}: {kind}." for kind, names in columns.items()]
