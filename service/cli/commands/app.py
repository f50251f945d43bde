"""The commands of `shardtune` and their options. Results go to stdout, everything else to stderr."""

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Annotated, get_args

import typer

from shardtune.api_schemas.exports import ExportFormat
from shardtune.db.backup import backup
from shardtune.db.session import parse_url, upgrade, without_secrets
from shardtune.service.app import create_app
from shardtune.service.cli import study_file, summary
from shardtune.service.cli.commands import export as exporting
from shardtune.service.cli.commands import fingerprints, keys, schedules, studies, workers
from shardtune.service.cli.commands import predict as predicting
from shardtune.service.cli.commands.tune import TuneOptions
from shardtune.service.cli.commands.tune import tune as run_tune
from shardtune.service.cli.connection import connected, study_named
from shardtune.service.cli.environment import read_settings
from shardtune.service.cli.errors import PLATFORM_FAILURE, InputError
from shardtune.service.cli.options import AsJson, KeyFile, Service, StateDir, StudyId
from shardtune.service.cli.processes import MODULE, listening_socket
from shardtune.service.cli.stack import database_errors, database_url, prepare
from shardtune.service.observability import logs
from shardtune.service.process.context import Context
from shardtune.service.server import Server, ServerConfig, allow_files
from shardtune.service.wording import study_words

app = typer.Typer(
    name="shardtune",
    help="Give it a model and a cluster; it gives back the fastest training configuration that fits, measured.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
db_app = typer.Typer(help="The database.", no_args_is_help=True)
app.add_typer(db_app, name="db")
app.add_typer(keys.app, name="keys")
app.add_typer(keys.projects_app, name="projects")
app.add_typer(fingerprints.app, name="fingerprints")
app.add_typer(studies.app, name="studies")
app.add_typer(workers.app, name="workers")
app.add_typer(schedules.app, name="schedules")
app.add_typer(schedules.retunes_app, name="retunes")

AllowModel = Annotated[
    list[str] | None, typer.Option("--allow-model", metavar="NAME", help="An installed model that a study may name.")
]
AllowScript = Annotated[
    list[str] | None,
    typer.Option("--allow-script", metavar="NAME=COMMAND", help="A training script that a study may name."),
]


@app.command()
def tune(
    study: Annotated[Path | None, typer.Argument(help="A study file, or a model's config.json.")] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Ranks of a trial; all GPUs, or 2 CPU ranks without it.")
    ] = None,
    max_trials: Annotated[int | None, typer.Option(min=1, help="Run exactly this many trials.")] = None,
    memory_gib: Annotated[float | None, typer.Option(help="Memory of one CPU rank.")] = None,
    as_json: AsJson = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the last unfinished study.")] = False,
    state_dir: StateDir = Path(".shardtune"),
    out: Annotated[Path, typer.Option(help="Where the files of the winner are written.")] = Path("best"),
    allow_model: AllowModel = None,
    allow_script: AllowScript = None,
) -> None:
    """Find the fastest configuration on this machine, and write it as ready-to-use files."""
    if memory_gib is not None and memory_gib <= 0:
        raise InputError(f"--memory-gib ({memory_gib}) must be above 0; give the GiB that one rank may take")
    allowed = _worker_options(allow_model, allow_script)
    run_tune(TuneOptions(study, ranks, max_trials, memory_gib, resume, state_dir, out, as_json, allowed))


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8470,
    fd: Annotated[int | None, typer.Option(hidden=True, help="A listening socket to take over instead.")] = None,
) -> None:
    """Run the service; SQLite is migrated first, another database must be (`shardtune db upgrade`)."""
    settings = read_settings()
    logs.configure(settings.log_level)
    prepare(settings.database_url)
    allow_files(settings.max_connections)
    context = Context.opened(settings)
    config = ServerConfig(create_app(settings, context), settings, host=host, port=port)
    with socket.socket(fileno=fd) if fd is not None else listening_socket(host, port) as listener:
        keys.check_reach(settings.database_url, listener.getsockname()[0])
        address = "http://{}:{}".format(*listener.getsockname()[:2])
        typer.echo(f"listening on {address}; the API is described at {address}/openapi.json", err=True)
        Server(config, context).run(sockets=[listener])


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def worker(context: typer.Context) -> None:
    """Run a worker; the options are those of `python -m shardtune.workers` (see `shardtune worker --help`)."""
    os.execv(MODULE[0], [*MODULE, "shardtune.workers", *context.args])


@app.command()
def best(
    study: StudyId = "last",
    service: Service = None,
    key_file: KeyFile = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Print the answer of a finished study."""
    with connected(service, state_dir, key_file) as client:
        stored = study_named(client, study)
        result = client.best(stored.study_id)
        if as_json:
            print(json.dumps(summary.as_json(stored, result)))
        else:
            why_not = study_words.why_not(client.trials(stored.study_id), client.rejections(stored.study_id))
            print(summary.as_text(stored, result, why_not))


@app.command()
def export(
    study: StudyId = "last",
    which: Annotated[str, typer.Option(help="best, baseline, or the number of a trial.")] = "best",
    out: Annotated[Path, typer.Option(help="Where the files are written.")] = Path("best"),
    form: Annotated[str, typer.Option("--format", help=f"For whom: {', '.join(get_args(ExportFormat))}.")] = "standard",
    measure_lossy: Annotated[
        bool, typer.Option("--measure-lossy", help="Also run, on this machine, what the consumer does instead.")
    ] = False,
    service: Service = None,
    key_file: KeyFile = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
    allow_model: AllowModel = None,
    allow_script: AllowScript = None,
) -> None:
    """Write the files of a configuration."""
    if form not in get_args(ExportFormat):
        raise InputError(f"--format ({form!r}) is unknown; use one of {', '.join(get_args(ExportFormat))}")
    with connected(service, state_dir, key_file) as client:
        stored = study_named(client, study)
        files = client.export(stored.study_id, which, form)
    lossy = exporting.LossyOptions(state_dir, _worker_options(allow_model, allow_script)) if measure_lossy else None
    answer = {"study_id": stored.study_id, **exporting.run(files, out, lossy)}
    print(json.dumps(answer) if as_json else exporting.as_text(answer))


@app.command("run-trial")
def run_trial(
    file: Annotated[Path, typer.Argument(help="A trial as JSON, such as best/config.json.")],
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
    allow_model: AllowModel = None,
    allow_script: AllowScript = None,
) -> None:
    """Run one trial on this machine, without a service, and print its measurement."""
    study_file.read_json_object(file)
    command = [*MODULE, "shardtune.workers", "run-trial", str(file), "--work-dir", str(state_dir / "worker")]
    command += [*_worker_options(allow_model, allow_script), *(["--json"] if as_json else [])]
    code = subprocess.run(command, check=False).returncode
    # The worker's 1 means that it could not work at all.
    raise typer.Exit(PLATFORM_FAILURE if code == 1 else code)


@app.command("measure-hardware")
def measure_hardware(
    ranks: Annotated[int | None, typer.Option(min=1, help="Ranks; all GPUs, or 2 CPU ranks without it.")] = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Measure what predictions for this machine need (a minute); `predict --cluster local` and workers use it."""
    command = [*MODULE, "shardtune.workers", "measure-hardware", "--work-dir", str(state_dir / "worker")]
    command += ["--ranks", str(ranks)] if ranks else []
    command += ["--json"] if as_json else []
    code = subprocess.run(command, check=False).returncode
    raise typer.Exit(PLATFORM_FAILURE if code == 1 else code)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="A preset such as llama-2-70b, or the path of a config.json.")],
    cluster: Annotated[
        str,
        typer.Option(help="Nodes × GPUs per node × model, such as 8xh100 or 4x8xa100-80gb; `local`: measured here."),
    ] = "local",
    seq_len: Annotated[int | None, typer.Option(min=8, help="Tokens per sample; the model's own up to 4096.")] = None,
    micro_batch: Annotated[int, typer.Option(min=1, help="Samples per forward pass and GPU.")] = 1,
    gradient_accumulation: Annotated[int, typer.Option(min=1, help="Micro batches per step.")] = 1,
    recipe: Annotated[str, typer.Option(help="Dtypes: bf16-mixed, fp32, or auto: by the device.")] = "auto",
    hardware: Annotated[
        Path | None, typer.Option(help="What `measure-hardware --json` printed, here or elsewhere; for `local`.")
    ] = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Predict memory and speed of one configuration of each strategy, without running anything."""
    report = predicting.hardware_report(cluster, hardware, state_dir)
    options = predicting.PredictOptions(model, cluster, seq_len, micro_batch, gradient_accumulation, recipe, report)
    table = predicting.predict(options)
    if as_json:
        print(table.model_dump_json())
    else:
        predicting.show(table)


@db_app.command("upgrade")
def db_upgrade(state_dir: StateDir = Path(".shardtune"), as_json: AsJson = False) -> None:
    """Bring the database (SHARDTUNE_DATABASE_URL, else the state directory's) to this version."""
    url = database_url(state_dir)
    with database_errors():
        shown = without_secrets(parse_url(url))
        upgrade(url)
    print(json.dumps({"database_url": shown, "migrated": True}) if as_json else f"{shown} is at this version")


def _worker_options(models: list[str] | None, scripts: list[str] | None) -> tuple[str, ...]:
    named = [("--allow-model", name) for name in models or ()] + [("--allow-script", text) for text in scripts or ()]
    return tuple(part for pair in named for part in pair)


@db_app.command("backup")
def db_backup(
    out: Annotated[Path, typer.Argument(help="File to write; must not exist.")],
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Copy the database while it is in use (SQLite: online backup; Postgres: pg_dump in its custom format)."""
    url = database_url(state_dir)
    with database_errors():
        size = backup(url, out)
    print(json.dumps({"file": str(out), "bytes": size}) if as_json else f"{out}: {size / 2**20:.1f} MiB")
