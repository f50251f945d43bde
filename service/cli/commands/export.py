"""`shardtune export`: write the files of a configuration."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from shardtune.api_schemas.studies.exports import ExportFormat
from shardtune.service.cli.connection import connect_or_start, find_study
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
    from shardtune.service.cli import export_job
else:
    export_job = LazyModule("shardtune.service.cli.export_job")

app = typer.Typer()


@app.command()
def export(
    study: StudyId = "last",
    which: Annotated[
        str, typer.Option(help="Configuration to export: best, baseline, target (projected), or a trial's number.")
    ] = "best",
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("best"),
    form: Annotated[
        str, typer.Option("--format", help=f"Format of the consumer: {', '.join(get_args(ExportFormat))}.")
    ] = "standard",
    measure_lossy: Annotated[
        bool, typer.Option("--measure-lossy", help="Measure on this machine the speed that a lossy format costs.")
    ] = False,
    service: Service = None,
    key_file: KeyFile = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
    allow_model: AllowModel = None,
    allow_script: AllowScript = None,
) -> None:
    """Write the files of a configuration."""
    # Before connecting, which may start a service on the state directory for seconds.
    if form not in get_args(ExportFormat):
        raise InputError(f"--format ({form!r}) is unknown; use one of {', '.join(get_args(ExportFormat))}")
    with connect_or_start(service, state_dir, key_file) as client:
        stored = find_study(client, study)
        files = client.export(stored.study_id, which, form)
    lossy = export_job.LossyOptions(state_dir, worker_options(allow_model, allow_script)) if measure_lossy else None
    local_state = state_dir if service is None else None
    answer = {"study_id": stored.study_id, **export_job.write_and_check(files, out, lossy, local_state)}
    print(json.dumps(answer) if as_json else export_job.as_text(answer))
