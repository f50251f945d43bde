"""`shardtune worker`, `run-trial` and `measure-hardware`: run the worker's programs on this machine."""

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardtune.service.cli.errors import PLATFORM_FAILURE
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import (
    AllowModel,
    AllowScript,
    AsJson,
    LauncherName,
    Nodes,
    StateDir,
    launcher_options,
    worker_options,
)
from shardtune.service.cli.processes import MODULE

if TYPE_CHECKING:
    from shardtune.service.cli import study_file
else:
    study_file = LazyModule("shardtune.service.cli.study_file")

app = typer.Typer()


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def worker(context: typer.Context) -> None:
    """Run a worker with the options of `python -m shardtune.workers` (see `shardtune worker --help`)."""
    # Replaces this process: signals of a supervisor (systemd, Kubernetes) must reach the worker itself.
    os.execv(MODULE[0], [*MODULE, "shardtune.workers", *context.args])


@app.command("run-trial")
def run_trial(
    file: Annotated[Path, typer.Argument(help="JSON file of a trial, such as best/config.json.")],
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
    allow_model: AllowModel = None,
    allow_script: AllowScript = None,
    launcher: LauncherName = None,
) -> None:
    """Run one trial on this machine, or over hosts, without a service, and print its measurement."""
    # Read for its errors alone: the worker would need seconds of imports before the same message.
    study_file.read_json_object(file)
    command = [*MODULE, "shardtune.workers", "run-trial", str(file), "--work-dir", str(state_dir / "worker")]
    command += [*worker_options(allow_model, allow_script), *launcher_options(launcher, None)]
    command += ["--json"] if as_json else []
    code = subprocess.run(command, check=False).returncode
    # The worker exits with 1 where it could not run at all; the command line has 4 for that.
    raise typer.Exit(PLATFORM_FAILURE if code == 1 else code)


@app.command("measure-hardware")
def measure_hardware(
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Number of ranks (default: all GPUs, or 2 CPU ranks).")
    ] = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
    launcher: LauncherName = None,
    nodes: Nodes = None,
) -> None:
    """Measure the rates of this machine, or of hosts, for predictions (about a minute); `predict --cluster local` and workers use them."""
    command = [*MODULE, "shardtune.workers", "measure-hardware", "--work-dir", str(state_dir / "worker")]
    command += [*(["--ranks", str(ranks)] if ranks else []), *launcher_options(launcher, nodes)]
    command += ["--json"] if as_json else []
    code = subprocess.run(command, check=False).returncode
    raise typer.Exit(PLATFORM_FAILURE if code == 1 else code)
