"""The decision records, by number."""

import re
from pathlib import PurePosixPath

from docs.generate.context import PageContext
from docs.generate.markdown import table
from docs.generate.sources import ROOT


def decisions(context: PageContext) -> str:
    """A row for each record: number, and title with a link."""
    rows = []
    for path in sorted((ROOT / "docs/decisions").glob("[0-9]*.md")):
        title = path.read_text().partition("\n")[0].lstrip("# ")
        number, _, rest_of_title = re.sub(r"^(\d+)[.:]?\s*", r"\1|", title).partition("|")
        up = "../" * (len(PurePosixPath(context.page).parts) - 2)
        link = path.name if "docs/decisions" in context.page else f"{up}decisions/{path.name}"
        rows.append((path.name[:4], f"[{rest_of_title or number}]({link})"))
    return table(("number", "decision"), rows)
