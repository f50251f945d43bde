"""An answer as text, for `print` and for notebooks without HTML."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from shardtune.api_schemas.printable_text import printable
from shardtune.service.mcp.schemas.figures import Figure
from shardtune.service.python_api import words
from shardtune.service.python_api.rows import Cell, DayFigure, RowTable

_WIDTH = 160


def answer(summary: str, subject: str, tables: Sequence[RowTable], notes: Sequence[str]) -> str:
    """Return an answer as lines of text: its summary, its tables and its notes."""
    lines = io.StringIO()
    # In a notebook, Rich would show the lines at once instead of writing them to the file.
    console = Console(
        file=lines, width=_WIDTH, highlight=False, markup=False, emoji=False, color_system=None, force_jupyter=False
    )
    for line in (subject, summary):
        if line:
            console.print(printable(line))
    for table in tables:
        if table.rows:
            console.print(f"\n{printable(table.caption)}")
            console.print(_table(table))
            for line in (*words.bands(table), table.remark):
                if line:
                    console.print(printable(line))
    for note in notes:
        console.print(f"note: {printable(note)}")
    return "\n".join(line.rstrip() for line in lines.getvalue().rstrip().split("\n"))


def _table(table: RowTable) -> Table:
    columns = table.columns()
    shown = Table(box=None, pad_edge=False)
    for name in columns:
        shown.add_column(words.heading(name))
    for row in table.rows:
        shown.add_row(*(printable(_cell(row.cells.get(name))) for name in columns))
    return shown


def _cell(cell: Cell) -> str:
    if not isinstance(cell, Figure | DayFigure):
        return words.plain(cell)
    band = words.band(cell)
    return f"{words.value(cell)}{f' ({band})' if band else ''}, {cell.basis}"
