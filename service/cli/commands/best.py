"""`shardtune best`: print the recommended configuration of a finished study."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shardtune.service.cli.connection import connect_or_start, find_study
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import AsJson, KeyFile, Service, StateDir, StudyId

if TYPE_CHECKING:
    from shardtune.service.cli import summary
else:
    summary = LazyModule("shardtune.service.cli.summary")

app = typer.Typer()


@app.command()
def best(
    study: StudyId = "last",
    service: Service = None,
    key_file: KeyFile = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Print the recommended configuration of a finished study."""
    with connect_or_start(service, state_dir, key_file) as client:
        stored = find_study(client, study)
        result, trials = client.best(stored.study_id), client.trials(stored.study_id)
        if as_json:
            print(json.dumps(summary.as_json(stored, result, trials)))
        else:
            print(summary.as_text(stored, result, trials, client.rejections(stored.study_id)))
