"""Answer of the Python API: a summary and tables, as records, as a data frame, as text and as HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardtune.service.python_api import html, text
from shardtune.service.python_api.rows import RowTable
from shardtune.service.trackers import optional_packages

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Result:
    """Answer with its tables; `print` shows it as text, and a notebook shows it as HTML."""

    summary: str
    """Summary of the answer in one or two sentences."""
    tables: tuple[RowTable, ...]
    """Tables of the answer, starting with the most important one."""
    subject: str = ""
    """Description of the model, cluster and workload."""
    notes: tuple[str, ...] = ()
    """Warnings, and assumptions that were not checked."""

    def records(self, table: str | None = None) -> list[dict[str, Any]]:
        """Return a table's rows as flat dictionaries; `table`: its name (default: the first table).

        A value with a unit, such as the speed, takes five keys: `speed`, `speed_low`, `speed_high` (its band),
        `speed_unit` and `speed_basis` (`measured`, `projected` or `predicted`). Knobs of the configuration have keys
        such as `config.micro_batch`.

        Raises:
            ValueError: the answer has no table of this name.
        """
        return [row.record() for row in self._table(table).rows]

    def to_pandas(self, table: str | None = None) -> pandas.DataFrame:
        """Return a table's records as a data frame.

        Raises:
            MissingPackage: pandas is not installed.
            ValueError: the answer has no table of this name.
        """
        frame: pandas.DataFrame = optional_packages.load("pandas", "to_pandas").DataFrame(self.records(table))
        return frame

    def _table(self, name: str | None) -> RowTable:
        if name is None:
            return self.tables[0]
        names = [table.name for table in self.tables]
        if name not in names:
            raise ValueError(f"table ({name!r}) must be one of {', '.join(names)}")
        return self.tables[names.index(name)]

    def __repr__(self) -> str:
        return text.answer(self.summary, self.subject, self.tables, self.notes)

    def _repr_html_(self) -> str:
        return html.answer(self.summary, self.subject, self.tables, self.notes)
