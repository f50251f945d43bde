"""Options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

from shardtune.service.cli.errors import InputError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
StateDir = Annotated[Path, typer.Option(help="Where studies, logs and trial directories are kept.")]
Service = Annotated[
    str | None,
    typer.Option(
        "--service", "--url", envvar="SHARDTUNE_SERVICE_URL", help="A running service; without it, the state directory."
    ),
]
RunningService = Annotated[
    str, typer.Option("--service", "--url", envvar="SHARDTUNE_SERVICE_URL", help="Address of a running service.")
]
DEFAULT_SERVICE = "http://127.0.0.1:8470"
"""Where `shardtune serve` listens by default."""
KeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the API key; SHARDTUNE_API_KEY or SHARDTUNE_API_KEY_FILE without it."),
]
StudyId = Annotated[str, typer.Argument(help="A study's id, or `last` for the newest.")]
AllowModel = Annotated[
    list[str] | None, typer.Option("--allow-model", metavar="NAME", help="An installed model that a study may name.")
]
AllowScript = Annotated[
    list[str] | None,
    typer.Option("--allow-script", metavar="NAME=COMMAND", help="A training script that a study may name."),
]


LauncherName = Annotated[
    str | None,
    typer.Option("--launcher", metavar="slurm|ray", help="Run ranks over the hosts of a Slurm job or a Ray cluster."),
]
Nodes = Annotated[int | None, typer.Option(min=1, help="Hosts of a trial; all of a Slurm job without it.")]


def launcher_options(launcher: str | None, nodes: int | None) -> tuple[str, ...]:
    """As the worker's command line has them."""
    if launcher not in (None, "local", "slurm", "ray"):
        raise InputError(f"--launcher ({launcher}) must be local, slurm or ray")
    given = [*(("--launcher", launcher) if launcher else ()), *(("--nodes", str(nodes)) if nodes else ())]
    return tuple(given)


def worker_options(models: list[str] | None, scripts: list[str] | None) -> tuple[str, ...]:
    """As the worker's command line has them."""
    named = [("--allow-model", name) for name in models or ()] + [("--allow-script", text) for text in scripts or ()]
    return tuple(part for pair in named for part in pair)
