"""Options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
StateDir = Annotated[Path, typer.Option(help="Where studies, logs and trial directories are kept.")]
Service = Annotated[
    str | None,
    typer.Option(
        "--service", envvar="SHARDTUNE_SERVICE_URL", help="A running service; without it, the state directory."
    ),
]
