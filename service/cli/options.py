"""Options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
StateDir = Annotated[Path, typer.Option(help="Where studies, logs and trial directories are kept.")]
