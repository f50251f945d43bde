"""`shardtune best` and `shardtune export`: the answer of a finished study."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from shardtune.api_schemas.studies.exports import ExportFormat
from shardtune.service.cli.connection import connected, study_named
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import (
    AllowModel,
    AllowScript,
    AsJson,
    KeyFile,
    Service,
    StateDir,
    StudyId,
    worker_options,
)

if TYPE_CHECKING:
    from shardtune.service.cli import export_job as exporting
    from shardtune.service.cli import summary
else:
    summary = LazyModule("shardtune.service.cli.summary")
    exporting = LazyModule("shardtune.service.cli.export_job")

app = typer.Typer()


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
        result, trials = client.best(stored.study_id), client.trials(stored.study_id)
        if as_json:
            print(json.dumps(summary.as_json(stored, result, trials)))
        else:
            print(summary.as_text(stored, result, trials, client.rejections(stored.study_id)))


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
    lossy = exporting.LossyOptions(state_dir, worker_options(allow_model, allow_script)) if measure_lossy else None
    answer = {"study_id": stored.study_id, **exporting.run(files, out, lossy)}
    print(json.dumps(answer) if as_json else exporting.as_text(answer))
