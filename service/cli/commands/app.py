"""Table of the commands of `shardtune`. Results go to stdout, everything else to stderr.

A command's module is imported when the command is called: most modules need the database or the predictor, and `--help`
and `--version` should not wait for them.
"""

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from shardtune import __version__
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule, load, without_collections

if TYPE_CHECKING:
    import pydantic

    from shardtune.api_schemas import known_fields
else:
    pydantic, known_fields = LazyModule("pydantic"), LazyModule("shardtune.api_schemas.known_fields")

_NUMBER_PROBLEMS = frozenset(
    {"int_parsing", "int_parsing_size", "float_parsing", "greater_than_equal", "less_than_equal"}
)
"""Types of the errors that pydantic, by which Typer reads values (0.29), finds in a number."""


class CommandEntry(NamedTuple):
    """Location of a command's code, and its help."""

    module: str
    """Name of the command's module in this folder."""
    help: str
    """First line of the command's help. A test checks that it equals the help that the command itself states."""
    name: str = "app"
    """Name of the variable in the module that holds the Typer application."""


# The help stands here and in the command: the overview must not import every command's module to print its table.
COMMANDS = {
    "tune": CommandEntry(
        "tune",
        "Find the fastest configuration on this machine, or over hosts, and write it as ready-to-use files.",
    ),
    "serve": CommandEntry(
        "serve", "Run the service. SQLite is migrated at start; migrate other databases with `shardtune db upgrade`."
    ),
    "worker": CommandEntry(
        "local",
        "Run a worker with the options of `python -m shardtune.workers` (see `shardtune worker --help`).",
    ),
    "best": CommandEntry("best", "Print the recommended configuration of a finished study."),
    "compare": CommandEntry(
        "compare", "Compare configurations side by side: differing knobs, measured speed, memory and cost."
    ),
    "export": CommandEntry("export", "Write the files of a configuration."),
    "run-trial": CommandEntry(
        "local", "Run one trial on this machine, or over hosts, without a service, and print its measurement."
    ),
    "measure-hardware": CommandEntry(
        "local",
        "Measure the rates of this machine, or of hosts, for predictions (about a minute); `predict --cluster local` and workers use them.",
    ),
    "predict": CommandEntry(
        "predict",
        "Predict the fastest configurations that fit, and memory and speed of each strategy, without running a trial.",
    ),
    "plan": CommandEntry(
        "plan",
        "Plan a training run: hours, money and finish date by kind and number of GPUs, without running anything.",
    ),
    "rehearse": CommandEntry(
        "target.rehearse",
        "Rehearse a configuration at a cluster's full number of ranks, in a process without GPUs: does it build, and with what memory?",
    ),
    "explain": CommandEntry(
        "explain",
        "Explain the step time of a training job: computing, communication, waiting for other ranks, the host.",
    ),
    "mcp": CommandEntry(
        "mcp",
        "Serve tools for coding agents on stdin and stdout (MCP): predict, plan, memory, diagnose, and studies of a service.",
    ),
    "kubeflow-webhook": CommandEntry(
        "kubeflow",
        "Complete Kubeflow TrainJobs that ask for it: nodes, processes, GPUs and a configuration, by an admission webhook.",
    ),
    "db": CommandEntry("database", "Migrate, back up or restore the database."),
    "keys": CommandEntry("keys", "Manage API keys in the database of SHARDTUNE_DATABASE_URL or --state-dir."),
    "projects": CommandEntry("keys", "Manage projects and their quotas in the same database.", "projects_app"),
    "fingerprints": CommandEntry("fingerprints", "Show the hardware and software of the workers, and their changes."),
    "studies": CommandEntry("studies", "List, create, follow and change studies of a running service."),
    "workers": CommandEntry("workers", "List and manage workers of a running service (`shardtune worker` runs one)."),
    "schedules": CommandEntry("schedules", "Manage schedules, which measure recommendations again within a budget."),
    "costs": CommandEntry("costs", "Print GPU-seconds and their price by project, month and cause."),
    "retunes": CommandEntry(
        "schedules", "List and cancel retunes (repeated measurements of recommendations).", "retunes_app"
    ),
}


def command(name: str) -> TyperCommand | TyperGroup:
    """Import the module of a command, given its name on the command line, and return the command with its options."""
    place = COMMANDS[name]
    module = load(f"shardtune.service.cli.commands.{place.module}")
    loaded = get_command(getattr(module, place.name))
    # Typer makes no group of an application with one command, so that `best` has none to look in.
    chosen = loaded.commands.get(name, loaded) if isinstance(loaded, TyperGroup) else loaded
    assert isinstance(chosen, TyperCommand | TyperGroup)
    chosen.name = name
    return chosen


class _LazyCommand(TyperCommand):
    """A command that imports its module only when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the command and create the context in which it runs."""
        assert self.name is not None
        with without_collections():
            return command(self.name).make_context(info_name, args, parent=parent, **extra)


class _CommandTable(TyperGroup):
    """Group of the commands of `shardtune`, which imports each command only when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Create the context in which the command runs."""
        # Typer imports pydantic when it reads the first option.
        with without_collections():
            return super().make_context(info_name, args, parent=parent, **extra)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return a command by its name; None for an unknown name."""
        return _LazyCommand(cmd_name, help=COMMANDS[cmd_name].help) if cmd_name in COMMANDS else None

    def invoke(self, ctx: Any) -> Any:
        """Run the command of the command line.

        Raises:
            InputError: an option's number is out of its range, or no number.
        """
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            wrong_number = _number_error(error)
            if wrong_number is None:
                raise
            raise wrong_number from None


def _number_error(error: typer.BadParameter) -> InputError | None:
    """Return the error of a wrong number with option, value and remedy; None for a wrong value of another kind."""
    if error.param is None or not isinstance(error.__cause__, pydantic.ValidationError):
        return None
    problem = error.__cause__.errors(include_url=False)[0]
    if problem["type"] not in _NUMBER_PROBLEMS:
        return None
    option, words = max(error.param.opts, key=len), known_fields.rephrase_error(problem["msg"])
    return InputError(f"{option} ({problem['input']!s:.100}) {words}; give such a number")


# Typer's own tracebacks are off: they print local variables, which may hold an API key or a database's password.
app = typer.Typer(
    name="shardtune", cls=_CommandTable, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"shardtune {__version__}")
        raise typer.Exit


@app.callback(help="Find the fastest training configuration of a model on a cluster, by measuring short real trials.")
def shardtune(
    is_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Declare the options of `shardtune` itself."""
