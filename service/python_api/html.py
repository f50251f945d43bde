"""An answer as HTML for notebooks: without scripts or other resources, in the colours of the notebook's own theme.

Every text passes `_element`, which escapes it: names of models and messages of programs come from others.
"""

from collections.abc import Sequence
from html import escape

from shardtune.service.mcp.schemas.figures import Figure
from shardtune.service.python_api import words
from shardtune.service.python_api.rows import Cell, DayFigure, RowTable

# No colour but the text's own, more or less opaque: it is readable in every theme, light or dark.
_STYLE = """
.shardtune {max-width: 100%; line-height: 1.35}
.shardtune p {margin: 0 0 .5em; max-width: 60em}
.shardtune .shardtune-scroll {overflow-x: auto; margin: 0 0 .5em}
.shardtune table.shardtune-rows {border-collapse: collapse; margin: 0; font-size: .92em}
.shardtune .shardtune-rows caption {text-align: left; font-weight: 600; padding: .3em 0; caption-side: top; color: inherit}
.shardtune .shardtune-rows th, .shardtune .shardtune-rows td {text-align: left; vertical-align: top; border: 0; \
padding: .35em .9em .35em .3em; border-top: 1px solid color-mix(in srgb, currentColor 25%, transparent); \
white-space: normal; max-width: none}
.shardtune .shardtune-rows th {font-weight: 600; border-top: 0; white-space: nowrap}
.shardtune .shardtune-rows td.shardtune-short {white-space: nowrap}
.shardtune .shardtune-rows td.shardtune-long {min-width: 14em}
.shardtune small {display: block; font-size: .85em; opacity: .85}
.shardtune .shardtune-basis {border-bottom: 1px dashed currentColor}
.shardtune .shardtune-measured {border-bottom-style: solid; font-weight: 600}
.shardtune .shardtune-projected {border-bottom-style: dotted}
.shardtune .shardtune-notes {font-size: .88em; opacity: .85; margin: 0; padding-left: 1.2em; max-width: 68em}
"""

_SHORT = 20
"""Maximum number of characters of a text that a table cell keeps on one line."""


def answer(summary: str, subject: str, tables: Sequence[RowTable], notes: Sequence[str]) -> str:
    """Return the summary, tables and notes of an answer as one HTML element."""
    parts = [f"<style>{_STYLE}</style>"]
    parts += [_element("p", words_of_job) for words_of_job in (subject,) if words_of_job]
    parts.append(_raw("p", _element("b", summary)))
    for table in tables:
        if table.rows:
            parts.append(_raw("div", _table(table), "shardtune-scroll"))
    remarks = [line for table in tables if table.rows for line in (*words.bands(table), table.remark) if line]
    if lines := [*dict.fromkeys(remarks), *notes]:
        parts.append(_raw("ul", "".join(_element("li", line) for line in lines), "shardtune-notes"))
    return _raw("div", "".join(parts), "shardtune")


def message(title: str, text: str) -> str:
    """Return a title and a text, such as an error, as one HTML element."""
    return _raw("div", _raw("p", _element("b", title)) + _element("p", text))


def _table(table: RowTable) -> str:
    columns = table.columns()
    head = _raw("tr", "".join(_element("th", words.heading(name)) for name in columns))
    body = "".join(_raw("tr", "".join(_cell(row.cells.get(name)) for name in columns)) for row in table.rows)
    return _raw(
        "table", _element("caption", table.caption) + _raw("thead", head) + _raw("tbody", body), "shardtune-rows"
    )


def _cell(cell: Cell) -> str:
    if not isinstance(cell, Figure | DayFigure):
        text = words.plain(cell)
        return _element("td", text, "shardtune-short" if len(text) <= _SHORT else "shardtune-long")
    basis = _element("span", cell.basis, f"shardtune-basis shardtune-{cell.basis}")
    band = words.band(cell)
    below = basis + escape(f", {band}" if band else "")
    shown = escape(words.value(cell)) + _raw("small", below)
    return f'<td class="shardtune-short" title="{escape(cell.source)}">{shown}</td>'


def _element(tag: str, text: str, kind: str = "") -> str:
    return _raw(tag, escape(text), kind)


def _raw(tag: str, inner: str, kind: str = "") -> str:
    """Return an HTML element whose content is already HTML. The content is not escaped, because this module produced
    it."""
    return f'<{tag} class="{kind}">{inner}</{tag}>' if kind else f"<{tag}>{inner}</{tag}>"
