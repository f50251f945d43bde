"""`shardtune best`: print the recommended configuration of a finished study."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardtune.service.cli.connection import connect_or_start, find_study
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import AsJson, KeyFile, Service, StateDir, StudyId

if TYPE_CHECKING:
    from shardtune.service.cli import summary
    from shardtune.service.cli.answer_to_share import page, picture
    from shardtune.service.cli.tune import next_commands
else:
    picture = LazyModule("shardtune.service.cli.answer_to_share.picture")
    page = LazyModule("shardtune.service.cli.answer_to_share.page")
    summary = LazyModule("shardtune.service.cli.summary")
    next_commands = LazyModule("shardtune.service.cli.tune.next_commands")

app = typer.Typer()

_FORMATS = ("text", "json", "markdown", "svg")
_TO_SHARE = ("markdown", "svg")


@app.command()
def best(
    study: StudyId = "last",
    service: Service = None,
    key_file: KeyFile = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="Format: text, json, markdown (a page to share) or svg (a picture to share).",
            metavar="FORMAT",
        ),
    ] = "text",
) -> None:
    """Print the recommended configuration of a finished study."""
    if form == "png":
        # A PNG needs a font renderer, such as Pillow, which nothing else here needs. Browsers save SVG as SVG only.
        raise InputError("--format (png) is not written; give svg, which browsers show, or markdown")
    if form not in _FORMATS:
        raise InputError(f"--format ({form}) must be {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}")
    if as_json and form in _TO_SHARE:
        raise InputError(f"--json and --format {form} exclude each other; give one of them")
    with connect_or_start(service, state_dir, key_file) as client:
        stored = find_study(client, study)
        result, trials = client.best(stored.study_id), client.trials(stored.study_id)
        if form == "markdown":
            changes = client.export(stored.study_id).files.get("changes.md")
            print(page.as_markdown(stored, result, trials, changes))
        elif form == "svg":
            print(picture.as_svg(stored, result, trials), end="")
        elif as_json or form == "json":
            print(json.dumps(summary.as_json(stored, result, trials)))
            # As `tune --json` does: a program reads stdout, its user the rest.
            command = next_commands.to_decide(client, stored, result, service, state_dir, key_file)
            if command is not None:
                print(f"{'to decide':<12}{command}", file=sys.stderr)
        else:
            print(summary.as_text(stored, result, trials, client.rejections(stored.study_id)))
            print("\n".join(next_commands.rows(client, stored, result, service, state_dir, key_file)))
