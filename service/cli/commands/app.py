"""The commands of `shardtune`: where each is, and what it is for. Results go to stdout, everything else to stderr.

A command's module is imported when the command is called: most need the database or the predictor, and who asks for help
or for the version should not wait for them.
"""

from importlib.metadata import version
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from shardtune.service.cli.lazy_module import load


class CommandPlace(NamedTuple):
    """Of a command."""

    module: str
    """In this folder."""
    help: str
    """The command's own, which a test compares."""
    name: str = "app"
    """Of the Typer application there."""


PLACES = {
    "tune": CommandPlace(
        "tune",
        "Find the fastest configuration on this machine, or over hosts, and write it as ready-to-use files.",
    ),
    "serve": CommandPlace(
        "serve", "Run the service; SQLite is migrated first, another database must be (`shardtune db upgrade`)."
    ),
    "worker": CommandPlace(
        "local",
        "Run a worker; the options are those of `python -m shardtune.workers` (see `shardtune worker --help`).",
    ),
    "best": CommandPlace("answers", "Print the answer of a finished study."),
    "compare": CommandPlace(
        "compare", "Print configurations side by side: what differs, and the speed, memory and cost that were measured."
    ),
    "export": CommandPlace("answers", "Write the files of a configuration."),
    "run-trial": CommandPlace(
        "local", "Run one trial on this machine, or over hosts, without a service, and print its measurement."
    ),
    "measure-hardware": CommandPlace(
        "local",
        "Measure what predictions for this machine, or for hosts, need (a minute); `predict --cluster local` and workers use it.",
    ),
    "predict": CommandPlace(
        "predict",
        "Predict the fastest configurations that fit, and memory and speed of each strategy, without running anything.",
    ),
    "explain": CommandPlace(
        "explain",
        "Say where the steps of a training job went: computing, communication, waiting for other ranks, the host.",
    ),
    "db": CommandPlace("database", "The database."),
    "keys": CommandPlace("keys", "API keys, in the database of SHARDTUNE_DATABASE_URL or --state-dir."),
    "projects": CommandPlace("keys", "Projects and their quotas, in the same database.", "projects_app"),
    "fingerprints": CommandPlace("fingerprints", "Hardware and software of the workers, and what changed."),
    "studies": CommandPlace("studies", "Studies of a running service: list, create, follow and change them."),
    "workers": CommandPlace("workers", "Workers of a running service. `shardtune worker` runs one."),
    "schedules": CommandPlace("schedules", "When recommendations are measured again, and what that may cost."),
    "costs": CommandPlace("costs", "Print GPU-seconds by project, month and cause, and what they cost."),
    "retunes": CommandPlace("schedules", "What was, is and will be measured again.", "retunes_app"),
}


def command(name: str) -> TyperCommand | TyperGroup:
    """A command with its options, by its name on the command line."""
    place = PLACES[name]
    module = load(f"shardtune.service.cli.commands.{place.module}")
    made = get_command(getattr(module, place.name))
    found = made.commands.get(name, made) if isinstance(made, TyperGroup) else made
    assert isinstance(found, TyperCommand | TyperGroup)
    found.name = name
    return found


class _Named(TyperCommand):
    """A command of which only the name and the purpose are known yet."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The command's own."""
        assert self.name is not None
        return command(self.name).make_context(info_name, args, parent=parent, **extra)


class _Commands(TyperGroup):
    """In the order of the table."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return list(PLACES)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """By its name; None where there is none."""
        return _Named(cmd_name, help=PLACES[cmd_name].help) if cmd_name in PLACES else None


app = typer.Typer(
    name="shardtune", cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"shardtune {version('shardtune')}")
        raise typer.Exit


@app.callback(
    help="Give it a model and a cluster; it gives back the fastest training configuration that fits, measured."
)
def shardtune(
    is_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What all commands share."""
